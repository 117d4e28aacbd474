"""XML-CNN: a conventional CNN over words, with one row per label; what InceptionXML is compared with."""

from __future__ import annotations

from longtail.classifiers.rows import Rows
from longtail.encoders.cnn import Cnn
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.training.stages.training import Training


def xmlcnn() -> Recipe:
    """Return the recipe. References: [XML-CNN]; [InceptionXML] Table 1."""
    rows = Rows(init="random", text=None, bias=True, bias_init="prior", cosine=False)
    return Recipe(
        name="xmlcnn",
        encoder=Cnn(),
        objectives=(Objective(sampler=AllLabels(), classifier=rows, loss=BceMean()),),
        stages=(
            Training(
                epochs=42,
                batch_size=128,
                learning_rate=0.002,
                dense_learning_rate=0.002,
                schedule="onecycle",
                warmup=0.3,
            ),
        ),
    )
