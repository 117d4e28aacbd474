"""SCORES × TARGETS → THE SUM OF SEVERAL LOSSES. References: [UniDEC] §2.4.2 (decoupled softmax and cross-entropy)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from longtail.errors import RecipeError
from longtail.losses.bce import Bce
from longtail.losses.decoupled import Decoupled
from longtail.parts import Loss
from longtail.records import record

if TYPE_CHECKING:
    from torch import Tensor


@record
class Sum(Loss):
    """Several losses of the same scores, each with a weight: 1 where there are no weights."""

    part: ClassVar[str] = "sum_of"
    of: tuple[Loss, ...] = (Decoupled(), Bce())  # the losses that are added up
    weights: tuple[float, ...] = ()  # of the losses; 1 each where there are none

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        """Whether all of them do."""
        return all(loss.adds_up for loss in self.of)

    def check(self, recipe: Any) -> None:
        """Ask for losses of scores, and a weight for each."""
        if not self.of or (self.weights and len(self.weights) != len(self.of)):
            raise RecipeError(f"{recipe.name}: sum_of has {len(self.of)} losses and {len(self.weights)} weights")
        if any(loss.needs_rows or loss.needs_cosines for loss in self.of):
            raise RecipeError(f"{recipe.name}: sum_of takes losses of logits, such as decoupled, supcon, bce")

    def __call__(self, scores: Tensor, targets: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Compute the loss."""
        first, *others = (
            weight * loss(scores, targets, mask, weights)
            for loss, weight in zip(self.of, self.weights or (1.0,) * len(self.of), strict=True)
        )
        return sum(others, first)
