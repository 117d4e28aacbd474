"""Astec: a bag encoder learns clusters of labels, is frozen, and label rows are trained on what is near."""

from __future__ import annotations

from longtail.classifiers.linear import Linear
from longtail.encoders.bag import Bag
from longtail.recipe import Recipe
from longtail.shortlists.near import Near
from longtail.training.settings import Surrogate, Training


def astec() -> Recipe:
    """Return the recipe of methods §5.4; `--set rerank=rerank` adds the re-ranker. References: [Astec]."""
    return Recipe(
        name="astec",
        encoder=Bag(dim=300, dropout=0.5, relu=True, start="ppmi"),
        surrogate=Surrogate(clusters=8192, training=Training(epochs=20, batch=255, rate=0.01, schedule="step")),
        shortlist=Near(),
        classifier=Linear(start="random", text=None, bias=True, cosine=False),
        loss="bce",
        training=Training(epochs=15, batch=255, rate=0.002, schedule="step", halved=0.9),
    )
