"""→ WHAT LABELS KNOW: frequencies, propensities, graphs."""
