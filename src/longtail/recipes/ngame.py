"""NGAME: an encoder for points and label texts, batches of similar points, then a row for each label; with Renee."""

from __future__ import annotations

from dataclasses import replace

from longtail.augment.gandalf import Gandalf
from longtail.classifiers.rows import Rows
from longtail.classifiers.texts import LabelText
from longtail.encoders.bag import Bag
from longtail.losses.chunked import ChunkedBce
from longtail.losses.triplet import Triplet
from longtail.parts import Objective
from longtail.recipe import Recipe
from longtail.records import replaced
from longtail.samplers.all_labels import AllLabels
from longtail.samplers.batch_pool import BatchPool
from longtail.training.orders import Similar
from longtail.training.settings import LoopSettings
from longtail.training.stages.phase import Phase
from longtail.training.stages.training import Training


def ngame() -> Recipe:
    """Return NGAME: one encoder for points and label texts, batches of similar points, then a row for each label.

    This is the recipe of methods §5.8: cosines with the texts of labels and with their rows are added when served. The
    paper adds them up with a decision tree. References: [NGAME].
    """
    cosines = LabelText(texts="tower", transform=None, cosine=True, scale=1.0, learn_scale=False)
    texts = Objective(sampler=BatchPool(positives=1, pick="one", random=0), classifier=cosines, loss=Triplet())
    rows = Rows(init="vectors", text=None, cosine=True, scale=1.0, learn_scale=False, dropout=0.5)
    loss = Triplet(margin=0.2, positives=3, negatives=5, weigh="violations")
    free = Objective(sampler=BatchPool(random=0), classifier=rows, loss=loss)
    order = Similar(by="vectors", group=2, refresh=5, double_every=4)
    return Recipe(
        name="ngame",
        encoder=Bag(dim=512, dropout=0.0, init="ppmi"),
        objectives=(free, replace(texts, weight=0.0, served=1.0)),
        stages=(
            Phase(
                objectives=(texts,), freeze=True,
                training=LoopSettings(epochs=40, batch_size=512, learning_rate=0.005, schedule="linear", order=order),
            ),
            Training(epochs=20, batch_size=512, learning_rate=0.002, schedule="linear"),
        ),
    )  # fmt: skip


def ngame_renee() -> Recipe:
    """Return NGAME with Renee: after NGAME's encoder one row for each label, trained against all of them.

    This is the recipe of methods §5.10. Label texts are points of their own label; `+gandalf` puts soft targets in
    their place. Rows start from NGAME's vectors of label texts, as cosines with a bias: sums of words have no direction
    in common that would be one, as the vectors of transformers do (decision 0007). References: [Renee].
    """
    first = ngame()
    rows = Rows(init="vectors", text=None, bias=True, bias_init="prior", dropout=0.5)
    return replace(
        first,
        name="ngame_renee",
        augment=(Gandalf(targets="self"),),
        objectives=(Objective(sampler=AllLabels(), classifier=rows, loss=ChunkedBce()),),
        stages=(
            replaced(first.stages[0].shortened(0.5), "freeze", False),
            Training(epochs=15, batch_size=512, learning_rate=0.001),
        ),
    )
