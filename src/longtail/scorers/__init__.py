"""QUERY → SCORED LABELS: what a trained model serves, without torch where it can."""
