"""A bag encoder shared by points and labels, calibrated Gandalf; blended with linear and lexical scores."""

from __future__ import annotations

from longtail.augment.gandalf import Gandalf
from longtail.classifiers.rows import Rows
from longtail.classifiers.sparse import Linear
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Residual
from longtail.losses.decoupled import Decoupled
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.batch_pool import BatchPool
from longtail.scorers.lexical import Lexical
from longtail.training.orders import Similar
from longtail.training.stages.training import Training


def frugal() -> Recipe:
    """Return the recipe with the most quality per second of CPU training that we know; LOG.md has what did not pay."""
    rows = Rows(init="points", text="sum", text_weight=2.0)
    return Recipe(
        name="frugal",
        augment=(Gandalf(calibrate=True, untested="self"),),
        encoder=Bag(dim=256, dropout=0.5, relu=True),
        objectives=(Objective(head=Residual(), sampler=BatchPool(random=0), classifier=rows, loss=Decoupled()),),
        stages=(
            Training(
                epochs=5, min_steps=400, batch_size=256, order=Similar(group=2), refit=20_000, precision="bf16-products"
            ),
        ),
        voices=(Lexical(pairs=None), Linear(trees=2, pairs=True, iterations=5)),
    )
