"""SiameseXML: one encoder for points and label texts, then a row for each label that starts where its text is."""

from __future__ import annotations

from longtail.classifiers.rows import Rows
from longtail.encoders.bag import Bag
from longtail.encoders.heads import Residual
from longtail.losses.contrastive import Contrastive
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.near import Near
from longtail.training.settings import LoopSettings
from longtail.training.stages.siamese import Siamese
from longtail.training.stages.training import Training


def siamesexml() -> Recipe:
    """Return the recipe of methods §5.7; `--set siamese.freeze=false` is SiameseXML++. References: [SiameseXML]."""
    rows = Rows(init="graph_vectors", text=None, cosine=True, scale=1.0, learn_scale=False)
    first = LoopSettings(epochs=50, batch_size=1024, learning_rate=0.01, schedule="step", decay_every=0.6)
    second = Training(epochs=20, batch_size=255, learning_rate=0.002, schedule="step", decay_every=0.7)
    loss = Contrastive(c=0.75, d=3.0, hardest=20, floor=0.05)
    return Recipe(
        name="siamesexml",
        encoder=Bag(dim=300, dropout=0.0, relu=True, init="ppmi"),
        objectives=(
            Objective(
                head=Residual(radius=True), sampler=Near(random=0, hard=20, texts=True), classifier=rows, loss=loss
            ),
        ),
        stages=(Siamese(training=first), second),
    )
