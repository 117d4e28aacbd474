"""Astec: a bag encoder learns clusters of labels, is frozen, and label rows are trained on what is near."""

from __future__ import annotations

from longtail.classifiers.linear import Linear
from longtail.encoders.bag import Bag
from longtail.recipe import Recipe
from longtail.shortlists.near import Near
from longtail.training.settings import Surrogate, Training


def astec() -> Recipe:
    """Return the recipe of methods §5.4, with label rows that start from their points.

    `--set rerank=rerank` adds the re-ranker. The word vectors are trained on with the label rows here, as in the
    re-ranker of the paper; `--set surrogate.freeze=true` freezes them. References: [Astec].
    """
    first = Training(epochs=20, least=800, batch=255, rate=0.02, schedule="step")
    return Recipe(
        name="astec",
        encoder=Bag(dim=300, dropout=0.5, relu=True, start="ppmi"),
        surrogate=Surrogate(clusters=8192, training=first, freeze=False),
        shortlist=Near(random=1000, hard=5),
        classifier=Linear(start="points", text=None, bias=True, cosine=False),
        loss="bce",
        training=Training(epochs=15, least=800, batch=255, rate=0.01, schedule="step", halved=0.9),
    )
