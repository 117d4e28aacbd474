"""InceptionXML: convolutions along the embedding, one row per label; InceptionXML+ scores the best clusters only."""

from __future__ import annotations

from longtail.classifiers.dense_rows import DenseRows
from longtail.classifiers.rows import Rows
from longtail.encoders.heads import Residual
from longtail.encoders.inception import Inception
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.clusters import Clusters
from longtail.training.stages.training import Training


def inceptionxml() -> Recipe:
    """Return InceptionXML: convolutions along the embedding, and a row for each label, all of which are scored.

    This is the one-vs-all model of methods §5.1. References: [InceptionXML] §4.
    """
    head = Residual(activation="gelu", norm="batchnorm", dropout=0.25)
    rows = Rows(init="random", text=None, bias=True, bias_init="prior", cosine=False, dropout=0.5)
    return Recipe(
        name="inceptionxml",
        encoder=Inception(drop_projection=True),
        objectives=(Objective(head=head, sampler=AllLabels(), classifier=rows, loss=BceMean()),),
        stages=(
            Training(
                epochs=42,
                batch_size=128,
                learning_rate=0.005,
                dense_learning_rate=0.005,
                schedule="onecycle",
                warmup=0.3,
            ),
        ),
    )


def inceptionxml_plus() -> Recipe:
    """Return InceptionXML+: the same for many labels, of which only those in the best clusters are scored.

    This is the model of methods §5.2, with fewer words, epochs and candidates than on a GPU. References: [InceptionXML]
    §5.

    Label rows and cluster rows have a head each; for a quarter of the steps the label rows do not change the encoder.
    """
    head = Residual(activation="gelu", dropout=0.25)
    rows = Rows(init="random", text=None, cosine=False, dropout=0.5)
    return Recipe(
        name="inceptionxml_plus",
        encoder=Inception(max_tokens=16),
        objectives=(
            Objective(head=head, sampler=Clusters(), classifier=rows, loss=BceMean(), detach=0.25),
            Objective(over="clusters", head=head, sampler=AllLabels(), classifier=DenseRows(), loss=BceMean()),
        ),
        stages=(
            Training(
                epochs=20,
                batch_size=128,
                learning_rate=0.008,
                dense_learning_rate=0.008,
                schedule="onecycle",
                warmup=0.33,
            ),
        ),
    )
