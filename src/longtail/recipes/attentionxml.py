"""AttentionXML and LaRoBERTa: each label looks at its own words."""

from __future__ import annotations

from dataclasses import replace

from longtail.classifiers.attention import LabelAttention
from longtail.encoders.recurrent import Recurrent
from longtail.encoders.transformer import Transformer
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.batch_pool import BatchPool
from longtail.samplers.tree import Tree
from longtail.training.orders import Lengths
from longtail.training.settings import LoopSettings
from longtail.training.stages.levels import Levels
from longtail.training.stages.training import Training


def attentionxml() -> Recipe:
    """Return AttentionXML: each label looks at its own words, read by an LSTM; a tree leads to the best of many labels.

    This is the recipe of methods §5.12: with few labels against a pool of them, and all are scored when served.
    References: [AttentionXML].
    """
    tree = Tree(pool=BatchPool(positives=4, random=64))
    settings = LoopSettings(epochs=10, batch_size=16, learning_rate=0.005, clip=5.0, average=0.5, order=Lengths())
    return Recipe(
        name="attentionxml",
        encoder=Recurrent(dim=128),
        objectives=(Objective(sampler=tree, classifier=LabelAttention(), loss=BceMean()),),
        stages=(Levels(training=settings), Training(**vars(settings))),
    )


def laroberta() -> Recipe:
    """Return LaRoBERTa: each label looks at its own words, read by a transformer, MiniLM by default.

    This is the recipe of methods §5.13. References: [LaRoBERTa].
    """
    recipe = attentionxml()
    settings = LoopSettings(epochs=4, batch_size=32, learning_rate=0.005, clip=5.0, average=0.5, order=Lengths())
    return replace(
        recipe,
        name="laroberta",
        encoder=Transformer(tokens=True, max_tokens=64),
        stages=(Levels(training=settings), Training(**vars(settings))),
    )
