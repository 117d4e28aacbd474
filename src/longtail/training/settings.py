"""Settings of the loop, apart from it so that a model loads without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from longtail.errors import RecipeError
from longtail.parts import BatchOrder, Stage
from longtail.records import Part, record, replaced
from longtail.training.orders import Shuffled

SCHEDULES = {"decay_every": ("step",), "warmup": ("cosine", "linear", "constant", "onecycle")}  # that read a setting


@record
class LoopSettings(Part):
    """Settings of one run of the loop."""

    part: ClassVar[str] = "loop"
    renamed: ClassVar[Mapping[str, str]] = {
        "least": "min_steps",
        "batch": "batch_size",
        "rate": "learning_rate",
        "dense_rate": "dense_learning_rate",
        "halved": "decay_every",
        "optimiser": "optimizer",
        "clustered": "order.group, after --set training.order=similar",
    }
    epochs: int = Field(default=20, ge=1)  # how often every point is looked at
    min_steps: int = Field(default=0, ge=0)  # more epochs for small data; reset where epochs are overridden
    batch_size: int = Field(default=256, ge=1)  # points of a step
    learning_rate: float = Field(default=0.01, gt=0)  # of word vectors and label rows
    dense_learning_rate: float = Field(default=0.001, gt=0)  # of the layers that every step changes
    schedule: Literal["cosine", "linear", "constant", "onecycle", "step"] = "cosine"  # how the learning rate changes
    warmup: float = Field(default=0.1, ge=0, lt=1)  # share of the steps in which the rate rises
    decay_every: float = Field(default=0.7, gt=0, le=1)  # share of the steps after which `step` halves the rate
    # of word vectors and label rows; adagrad takes a third of the memory
    optimizer: Literal["adam", "adagrad"] = "adam"
    clip: float | None = Field(default=None, gt=0)  # gradients so many times as long as any of the last five are cut
    average: float | None = Field(default=None, ge=0, lt=1)  # share of the epochs after which weights are averaged
    order: BatchOrder = Shuffled()  # of the points of an epoch
    # of the layers on a GPU; bf16-products: of scores and the layer before them, where bfloat16 is quick
    precision: Literal["32-true", "bf16-mixed", "bf16-products"] = "32-true"
    device: str = "auto"  # auto, cpu or cuda
    tensorboard: bool = False  # whether curves are written for TensorBoard
    # between checkpoints; a training of less than half of it writes none
    save_seconds: float = Field(default=60.0, ge=0)

    def override(self, path: str, value: Any) -> Self:
        """Change a setting: whoever asks for epochs gets so many, and what could change nothing is refused."""
        changed = super().override(path, value)
        if path == "epochs":  # `min_steps` would win on small data: it counts if it is asked for too
            return replaced(changed, "min_steps", 0)
        if path in SCHEDULES and changed.schedule not in SCHEDULES[path] and changed != self:
            raise RecipeError(
                f"{path} = {value!r} changes nothing with the schedule {changed.schedule!r}; "
                f"set the schedule too, to one of: {', '.join(SCHEDULES[path])}"
            )
        return changed

    def steps(self, points: int) -> tuple[int, float]:
        """Return the points of a step, and how often each point is looked at."""
        return self.batch_size, max(float(self.epochs), self.min_steps * self.batch_size / max(points, 1))

    def moments(self) -> float:
        """Return how many numbers its optimizer keeps for each of a table: adagrad keeps one for a whole row."""
        return 2.0 if self.optimizer == "adam" else 0.0

    def shortened(self, share: float) -> Self:
        """Return the same settings with a share of the steps, to choose by."""
        fewer = replaced(self, "epochs", max(1, round(share * self.epochs)))
        return fewer.for_share(share)

    def for_share(self, share: float) -> Self:
        """Return the same settings for a share of the points: as many epochs, and fewer steps at least."""
        return replaced(self, "min_steps", round(share * self.min_steps))


@record
class LoopStage(Stage):
    """A stage that runs the loop with settings of its own."""

    training: LoopSettings = LoopSettings()  # settings of its loop

    def steps(self, points: int) -> tuple[int, float]:
        """Return the points of a step, and how often each point is looked at."""
        return self.training.steps(points)

    def moments(self) -> float:
        """Return how many numbers its optimizer keeps for each of a table."""
        return self.training.moments()

    def shortened(self, share: float) -> Self:
        """Return the same stage with a share of its steps."""
        return replaced(self, "training", self.training.shortened(share))

    def for_share(self, share: float) -> Self:
        """Return the same stage for a share of the points."""
        return replaced(self, "training", self.training.for_share(share))
