"""Settings of the loop, apart from it so that a model loads without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from longtail.recipe import Part, record


@record
class Training(Part):
    """Settings of the loop."""

    part: ClassVar[str] = "training"
    epochs: int = Field(default=20, ge=1)
    batch: int = Field(default=256, ge=1)
    rate: float = Field(default=0.01, gt=0)
    dense_rate: float = Field(default=0.001, gt=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = Field(default=0.1, ge=0, lt=1)  # share of the steps
    optimiser: Literal["adam", "adagrad"] = "adam"
    augmented: float = Field(default=1.0, ge=0)  # weight of the points that an augmentation made
    save_seconds: float = Field(default=60.0, ge=0)
