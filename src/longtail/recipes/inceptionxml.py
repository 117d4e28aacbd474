"""InceptionXML: convolutions along the embedding, one row per label; InceptionXML+ scores the best clusters only."""

from __future__ import annotations

from longtail.classifiers.linear import Linear
from longtail.encoders.convolutional import Inception
from longtail.recipe import Recipe
from longtail.shortlists.meta import Meta
from longtail.shortlists.pool import Everything
from longtail.training.settings import Training


def inceptionxml() -> Recipe:
    """Return the one-vs-all model of methods §5.1. References: [InceptionXML] §4."""
    return Recipe(
        name="inceptionxml",
        encoder=Inception(head="batchnorm", drop_projection=True),
        shortlist=Everything(),
        classifier=Linear(start="random", text=None, bias=True, cosine=False, dropout=0.5),
        loss="bce_mean",
        training=Training(epochs=42, batch=128, rate=0.005, dense_rate=0.005, schedule="onecycle", warmup=0.3),
    )


def inceptionxml_plus() -> Recipe:
    """Return the model of methods §5.2, with fewer candidates than on a GPU. References: [InceptionXML] §5."""
    return Recipe(
        name="inceptionxml_plus",
        encoder=Inception(),
        shortlist=Meta(),
        classifier=Linear(start="random", text=None, cosine=False, dropout=0.5),
        loss="bce_mean",
        training=Training(epochs=30, batch=256, rate=0.008, dense_rate=0.008, schedule="onecycle", warmup=0.33),
    )
