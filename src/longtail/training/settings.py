"""Settings of the loop and of the stages around it, apart from them so that a model loads without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from longtail.recipe import Part, record


@record
class Training(Part):
    """Settings of the loop.

    `clustered` puts so many similar points side by side in a batch: their labels are hard negatives for each other.
    `augmented` weighs the points that an augmentation made; "choose" tries some weights on held-out points first.
    """

    part: ClassVar[str] = "training"
    epochs: int = Field(default=20, ge=1)
    least: int = Field(default=0, ge=0)  # steps; small data get more epochs until there are so many
    batch: int = Field(default=256, ge=1)
    rate: float = Field(default=0.01, gt=0)
    dense_rate: float = Field(default=0.001, gt=0)
    schedule: Literal["cosine", "linear", "constant", "onecycle", "step"] = "cosine"
    warmup: float = Field(default=0.1, ge=0, lt=1)  # share of the steps
    halved: float = Field(default=0.7, gt=0, le=1)  # share of the steps after which `step` halves the rate, each time
    optimiser: Literal["adam", "adagrad"] = "adam"
    clustered: int = Field(default=1, ge=1)
    augmented: Annotated[float, Field(ge=0)] | Literal["choose"] = 1.0
    refit: int = Field(default=0, ge=0)  # data with fewer points are trained again on all once everything is chosen
    patience: int | None = Field(default=None, ge=1)  # stop after so many epochs that are no better on held-out points
    curves: bool = False  # measure held-out points after every epoch, for log.csv
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    device: str = "auto"
    tensorboard: bool = False
    save_seconds: float = Field(default=60.0, ge=0)


@record
class Surrogate(Part):
    """A first stage: the encoder learns clusters of labels, all of them scored."""

    part: ClassVar[str] = "surrogate"
    clusters: int = Field(default=4096, ge=2)
    training: Training = Training(rate=0.01, schedule="step", halved=0.7)
    freeze: bool = True  # word vectors stay as they are afterwards


@record
class Rerank(Part):
    """A last stage: a second network learns to rank what the first one finds."""

    part: ClassVar[str] = "rerank"
    top: int = Field(default=200, ge=1)
    training: Training = Training(epochs=10, rate=0.002, schedule="step", halved=0.8)
