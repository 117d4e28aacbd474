"""XML-CNN: a conventional CNN over words, with one row per label; what InceptionXML is compared with."""

from __future__ import annotations

from longtail.classifiers.linear import Linear
from longtail.encoders.convolutional import Cnn
from longtail.recipe import Recipe
from longtail.shortlists.pool import Everything
from longtail.training.settings import Training


def xmlcnn() -> Recipe:
    """Return the recipe. References: [XML-CNN]; [InceptionXML] Table 1."""
    return Recipe(
        name="xmlcnn",
        encoder=Cnn(),
        shortlist=Everything(),
        classifier=Linear(start="random", text=None, bias=True, cosine=False),
        loss="bce_mean",
        training=Training(epochs=42, batch=128, rate=0.002, dense_rate=0.002, schedule="onecycle", warmup=0.3),
    )
