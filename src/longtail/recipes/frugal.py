"""Our flagship: a bag encoder shared by points and labels, calibrated Gandalf, decoupled softmax, blended with knn."""

from __future__ import annotations

from longtail.augment.gandalf import Gandalf
from longtail.classifiers.linear import Linear
from longtail.encoders.bag import Bag
from longtail.recipe import Recipe
from longtail.shortlists.lexical import Lexical
from longtail.shortlists.pool import Pool
from longtail.training.settings import Training


def frugal() -> Recipe:
    """Return the recipe with the most quality per second of CPU training that we know; LOG.md has what did not pay."""
    return Recipe(
        name="frugal",
        augment=(Gandalf(calibrate=True, untested="self"),),
        encoder=Bag(dim=256, dropout=0.5, relu=True),
        shortlist=Pool(random=0),
        classifier=Linear(start="points", text="sum"),
        loss="decoupled",
        training=Training(epochs=5, least=400, batch=512, refit=20_000),
        lexical=Lexical(pairs=None),
    )
