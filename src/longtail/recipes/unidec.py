"""UniDEC and DePSL: one encoder for points and label texts, pick-some-labels losses, and free rows beside it."""

from __future__ import annotations

from dataclasses import replace

from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import LabelText
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Project
from longtail.losses.bce import BceMean
from longtail.losses.decoupled import Decoupled
from longtail.losses.sums import Sum
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.batch_pool import BatchPool
from longtail.training.orders import Similar
from longtail.training.stages.training import Training


def unidec() -> Recipe:
    """Return UniDEC: one encoder with two heads, for label texts and for free rows; their cosines are added.

    This is the recipe of methods §5.16. Rows are learnt as they are served, as cosines, and start from what their head
    makes of the label's text, so that labels with few points have a direction too (decision 0007). References:
    [UniDEC] §2.3.
    """
    recipe = depsl()
    texts = replace(recipe.objectives[0], head=Project(dim=256, tanh=True), weight=0.5, served=1.0)
    rows = Rows(init="nothing", text="head")
    loss = Sum(of=(Decoupled(directions="both"), BceMean()))
    free = Objective(head=Project(dim=256), sampler=texts.sampler, classifier=rows, loss=loss, weight=0.5, served=1.0)
    return replace(recipe, name="unidec", objectives=(texts, free))


def depsl() -> Recipe:
    """Return DePSL: UniDEC's dual encoder alone, for points and label texts. References: [UniDEC] §2.3.2."""
    pool = BatchPool(positives=3, random=0, hard=6, mined=30, refresh=5, start=0)
    texts = LabelText(texts="head", transform=None, cosine=True, scale=20.0, learn_scale=False)
    objective = Objective(
        head=Project(dim=512, tanh=True), sampler=pool, classifier=texts, loss=Decoupled(directions="both")
    )
    return Recipe(
        name="depsl",
        encoder=Bag(dim=512, dropout=0.0, relu=False, init="ppmi"),
        objectives=(objective,),
        stages=(Training(epochs=20, batch_size=256, order=Similar(by="vectors", group=None, refresh=5)),),
    )
