"""Linear classifiers over words in trees of labels, with calibrated Gandalf: seconds on a CPU."""

from __future__ import annotations

from longtail.augment.gandalf import Gandalf
from longtail.classifiers.sparse import Linear
from longtail.recipe import Recipe


def linear() -> Recipe:
    """Return what PECOS and omikuji are, trained on label texts too. References: [Parabel], [PECOS], [Gandalf]."""
    return Recipe(name="linear", augment=(Gandalf(calibrate=True, untested="self"),), voices=(Linear(),))
