"""DECAF: label vectors from label texts and free rows, on the clusters that a first stage finds best."""

from __future__ import annotations

from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import Combined, LabelText
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Gated
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.beam import Beam
from longtail.training.settings import LoopSettings
from longtail.training.stages.phase import Level
from longtail.training.stages.recluster import Recluster
from longtail.training.stages.surrogate import Surrogate
from longtail.training.stages.training import Training


def decaf() -> Recipe:
    """Return the recipe of methods §5.5.

    The encoder learns clusters of labels by their texts, labels are clustered again by what it has learnt, a level over
    these clusters is trained, and then the labels of each point's best clusters. References: [DECAF].
    """
    point, label = Gated(last=True, dropout=0.5), Gated(dropout=0.5)
    rows = Rows(init="label_text", text=None, cosine=False)
    combined = Combined(of=(LabelText(transform=label), rows), by="gates", bias=True, bias_init="prior")
    first = LabelText(transform=label, bias=True, bias_init="prior")
    clusters = Objective(over="clusters", head=point, sampler=AllLabels(), classifier=first, loss=BceMean())
    level = LoopSettings(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5)
    return Recipe(
        name="decaf",
        encoder=Bag(dim=300, dropout=0.0, relu=False, init="random"),
        objectives=(
            Objective(head=point, sampler=Beam(top=64), classifier=combined, loss=BceMean()),
            Objective(over="clusters", head=point, sampler=AllLabels(), classifier=combined, loss=BceMean()),
        ),
        stages=(
            Surrogate(
                num_clusters=None, smooth=True, objective=clusters, freeze=False,
                training=LoopSettings(
                    epochs=20, batch_size=255, learning_rate=0.01, schedule="step", decay_every=0.5
                ),
            ),
            Recluster(),
            Level(training=level),
            Training(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5),
        ),
    )  # fmt: skip
