"""LOSS → WEIGHTS."""
