"""InceptionXML-LF: InceptionXML+ with label vectors from label texts, those of graph neighbours and free rows."""

from __future__ import annotations

from longtail.classifiers.dense_rows import DenseRows
from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import Combined, GraphText, LabelText
from longtail.encoders.convolved import Convolved
from longtail.encoders.heads import Gated
from longtail.encoders.inception import Inception
from longtail.losses.bce import BceMean
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.clusters import Clusters
from longtail.training.settings import LoopSettings
from longtail.training.stages.phase import Phase
from longtail.training.stages.recluster import Recluster
from longtail.training.stages.training import Training


def inceptionxml_lf() -> Recipe:
    """Return the recipe of methods §5.3, in two phases. References: [InceptionXML-LF] appendix A.

    In the first label vectors are made from texts alone; then labels are clustered again by what their texts mean now,
    and free rows join in. The second convolution is decoupled: each objective has its own, in its head.
    """
    texts = (LabelText(transform=Gated(activation="gelu")), GraphText(transform=Gated(activation="gelu")))
    rows = Rows(init="label_text", text=None, cosine=False)
    first = Combined(of=texts, by="attention", bias=True, bias_init="prior", dropout=0.5)
    second = Combined(of=(*texts, rows), by="attention", bias=True, bias_init="prior", dropout=0.5)
    head = Convolved()
    clusters = Objective(over="clusters", head=head, sampler=AllLabels(), classifier=DenseRows(), loss=BceMean())
    labels = Objective(head=head, sampler=Clusters(max_candidates=24), classifier=first, loss=BceMean())
    return Recipe(
        name="inceptionxml_lf",
        encoder=Inception(max_tokens=16, branches="mixture"),
        objectives=(
            Objective(head=head, sampler=Clusters(max_candidates=24), classifier=second, loss=BceMean(), detach=0.25),
            clusters,
        ),
        stages=(
            Phase(
                objectives=(labels, clusters),
                training=LoopSettings(
                    epochs=6, batch_size=128, learning_rate=0.008, dense_learning_rate=0.008,
                    schedule="onecycle", warmup=0.33,
                ),
            ),
            Recluster(by="texts"),
            Training(
                epochs=8, batch_size=128, learning_rate=0.008, dense_learning_rate=0.008,
                schedule="onecycle", warmup=0.33,
            ),
        ),
    )  # fmt: skip
