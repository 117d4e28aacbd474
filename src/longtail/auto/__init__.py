"""DATA + BUDGET → RECIPE: which one is worth a fit, by short trials."""
