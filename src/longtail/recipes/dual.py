"""Dual encoders that learn from one positive a step: DEXML, and its small relatives DPR and ANCE."""

from __future__ import annotations

from dataclasses import replace

from longtail.classifiers.texts import LabelText
from longtail.encoders.bag import Bag
from longtail.losses.decoupled import Decoupled
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.batch_pool import BatchPool
from longtail.training.stages.training import Training


def dpr() -> Recipe:
    """Return DPR: a dual encoder whose negatives are the positives of other points of a batch. References: [DPR]."""
    texts = LabelText(texts="tower", transform=None, cosine=True, scale=20.0, learn_scale=False)
    pool = BatchPool(positives=1, pick="one", random=0)
    return Recipe(
        name="dpr",
        encoder=Bag(dim=512, dropout=0.0, init="ppmi"),
        objectives=(Objective(sampler=pool, classifier=texts, loss=Decoupled()),),
        stages=(Training(epochs=20, batch_size=512, schedule="linear"),),
    )


def ance() -> Recipe:
    """Return ANCE: DPR with negatives that the encoder itself finds, every five epochs. References: [ANCE]."""
    recipe = dpr()
    pool = BatchPool(positives=1, pick="one", random=0, hard=2, mined=50, refresh=5)
    return replace(recipe, name="ance", objectives=(replace(recipe.objectives[0], sampler=pool),))


def dexml() -> Recipe:
    """Return DEXML: a dual encoder with more hard negatives than ANCE, and a pool of labels.

    This is the recipe of methods §5.11; `--set sampler=all_labels --set sampler.pick=one` has no pool. References:
    [DEXML].
    """
    recipe = dpr()
    pool = BatchPool(positives=1, pick="one", random=0, hard=5, mined=100, refresh=5)
    return replace(
        recipe,
        name="dexml",
        objectives=(replace(recipe.objectives[0], sampler=pool),),
        stages=(Training(epochs=40, batch_size=512, schedule="linear"),),
    )
