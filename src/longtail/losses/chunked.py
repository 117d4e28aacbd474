"""VECTORS × LABEL ROWS → CROSS-ENTROPY OVER ALL LABELS, in chunks of labels: no matrix of all scores is ever held.

The gradient has a closed form, (σ(s) - y), which is made of each chunk at once, so that nothing of it is kept but what
it adds to the gradients of vectors and rows. References: [Renee]; methods §4.4, §5.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from longtail.losses.bce import Bce
from longtail.parts import Factors
from longtail.records import record
from longtail.types import LabelMatrix

if TYPE_CHECKING:
    from torch import Tensor


@record
class ChunkedBce(Bce):
    """The sum of the cross-entropies of every pair of a point, averaged over points, as `bce` computes it."""

    part: ClassVar[str] = "chunked_bce"
    needs_rows: ClassVar[bool] = True
    chunk: int = Field(default=8192, ge=1)  # labels that are scored at once

    def of_rows(self, factors: Factors, targets: LabelMatrix, excluded: LabelMatrix, weights: Tensor) -> Tensor:
        """Compute the loss of vectors against rows."""
        from longtail.losses.chunks import chunked_cross_entropy  # noqa: PLC0415  (torch)

        return chunked_cross_entropy(factors, (targets, excluded), weights, self.chunk)
