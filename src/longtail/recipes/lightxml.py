"""LightXML: the best clusters of labels, then their labels, both learnt together on one encoder."""

from __future__ import annotations

from longtail.classifiers.dense_rows import DenseRows
from longtail.classifiers.rows import Rows
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Project
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.clusters import Clusters
from longtail.training.stages.training import Training


def lightxml() -> Recipe:
    """Return the recipe of methods §5.14: a label has the product of its own and its cluster's probability.

    With a transformer the states of the last five layers stand side by side: `--set encoder=transformer --set
    encoder.pooling=cls --set encoder.layers=5`. References: [LightXML].
    """
    rows = Rows(init="random", text=None, cosine=False)
    return Recipe(
        name="lightxml",
        encoder=Bag(dim=512, dropout=0.2, init="ppmi"),
        objectives=(
            Objective(
                head=Project(dim=300, dropout=0.0), sampler=Clusters(smooth=False, cluster_weight=1.0), classifier=rows,
                loss=BceMean(),
            ),
            Objective(over="clusters", sampler=AllLabels(), classifier=DenseRows(dropout=0.0), loss=BceMean()),
        ),
        stages=(Training(epochs=15, batch_size=128, learning_rate=0.01, dense_learning_rate=0.005),),
    )  # fmt: skip
