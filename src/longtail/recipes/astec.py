"""Astec: a bag encoder learns clusters of labels, is frozen, and label rows are trained on what is near."""

from __future__ import annotations

from longtail.classifiers.rows import Rows
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Residual
from longtail.losses.bce import Bce
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.near import Near
from longtail.training.settings import LoopSettings
from longtail.training.stages.surrogate import Surrogate
from longtail.training.stages.training import Training


def astec() -> Recipe:
    """Return the recipe of methods §5.4, with label rows that start from their points.

    `--set rerank=rerank` adds the re-ranker. The word vectors are trained on with the label rows here, as in the
    re-ranker of the paper; `--set surrogate.freeze=true` freezes them. References: [Astec].
    """
    first = LoopSettings(epochs=20, min_steps=800, batch_size=255, learning_rate=0.02, schedule="step")
    second = Training(epochs=15, min_steps=800, batch_size=255, learning_rate=0.01, schedule="step", decay_every=0.9)
    rows = Rows(init="points", text=None, bias=True, cosine=False)
    return Recipe(
        name="astec",
        encoder=Bag(dim=300, dropout=0.5, relu=True, init="ppmi"),
        objectives=(Objective(head=Residual(), sampler=Near(random=1000, hard=5), classifier=rows, loss=Bce()),),
        stages=(
            Surrogate(num_clusters=8192, smooth=True, hops=50, restart=0.2, training=first, freeze=False),
            second,
        ),
    )
