"""ECLARE: label vectors from label texts, those of graph neighbours and free rows; predictions walk over the graph."""

from __future__ import annotations

from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import Combined, GraphText, LabelText
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
from longtail.training.stages.traverse import Traverse


def eclare() -> Recipe:
    """Return the recipe of methods §5.6: as DECAF, with the label graph in every place. References: [ECLARE].

    Word vectors go on learning after the first stage, with the rates of DECAF; the paper freezes them on most data:
    `--set surrogate.freeze=true`.
    """
    point, label = Gated(gates="one", last=True), Gated(gates="one")
    texts = (LabelText(transform=label), GraphText(transform=label))
    rows = Rows(init="graph_text", text=None, cosine=False)
    first = Combined(of=texts, by="attention", bias=True, bias_init="prior")
    combined = Combined(of=(*texts, rows), by="attention", bias=True, bias_init="prior")
    clusters = Objective(over="clusters", head=point, sampler=AllLabels(), classifier=first, loss=BceMean())
    level = LoopSettings(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5)
    return Recipe(
        name="eclare",
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
            Recluster(smooth=True, prune=1.0),
            Level(training=level),
            Training(epochs=10, batch_size=255, learning_rate=0.008, schedule="step", decay_every=0.5),
            Traverse(),
        ),
    )  # fmt: skip
