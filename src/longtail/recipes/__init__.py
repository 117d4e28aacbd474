"""ONE PAPER, ONE FILE: a recipe is a function that returns a frozen record of parts and settings."""
