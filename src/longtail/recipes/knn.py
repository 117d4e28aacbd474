"""TF-IDF similarity to label texts and to training points, fused: nothing to train, always there, the bar to beat."""

from __future__ import annotations

from longtail.recipe import Recipe
from longtail.scorers.lexical import Lexical


def knn() -> Recipe:
    """Return the lexical baseline; neighbours, power and share are chosen on validation."""
    return Recipe(name="knn", voices=(Lexical(),))
