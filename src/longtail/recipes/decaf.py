"""DECAF: label vectors from label texts and free rows, on the clusters that a first stage finds best."""

from __future__ import annotations

from dataclasses import replace

from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import Combined, LabelText
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Gated
from longtail.losses.bce import BceMean
from longtail.parts import Classifier, Head, Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.beam import Beam
from longtail.training.settings import LoopSettings
from longtail.training.stages.phase import Level
from longtail.training.stages.recluster import Recluster
from longtail.training.stages.surrogate import Surrogate
from longtail.training.stages.training import Training


def decaf() -> Recipe:
    """Return the recipe of methods §5.5. References: [DECAF]."""
    label = LabelText(transform=Gated(dropout=0.5))
    rows = Rows(init="label_text", text=None, cosine=False)
    combined = Combined(of=(label, rows), by="gates", bias=True, bias_init="prior")
    first = replace(label, bias=True, bias_init="prior")
    return in_levels("decaf", Gated(last=True, dropout=0.5), first, combined, Recluster())


def in_levels(name: str, head: Head, first: Classifier, combined: Classifier, recluster: Recluster) -> Recipe:
    """Return a recipe in DECAF's levels.

    The encoder learns clusters of labels by the classifier `first`, labels are clustered again by what it has learnt, a
    level over these clusters is trained, and then the labels of each point's best clusters, both by `combined`.
    """
    beam, everything, loss = Beam(top=64), AllLabels(), BceMean()
    return Recipe(
        name=name,
        encoder=Bag(dim=300, dropout=0.0, relu=False, init="random"),
        objectives=(
            Objective(head=head, sampler=beam, classifier=combined, loss=loss),
            Objective(over="clusters", head=head, sampler=everything, classifier=combined, loss=loss),
        ),
        stages=(
            Surrogate(
                num_clusters=None, smooth=True, freeze=False,
                objective=Objective(over="clusters", head=head, sampler=everything, classifier=first, loss=loss),
                training=LoopSettings(epochs=20, batch_size=255, learning_rate=0.01, schedule="step", decay_every=0.5),
            ),
            recluster,
            Level(
                training=LoopSettings(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5)
            ),
            Training(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5),
        ),
    )  # fmt: skip
