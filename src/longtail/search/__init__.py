"""VECTORS → NEIGHBOURS: no labels, no models, only vectors and ids."""
