"""Settings of the bag encoder; the layers themselves are in `modules`, so that a model loads without torch.

v = f(e) + e with e = drop(relu(Σ_t x_t E_t)) and f(e) = drop(relu(A e + b)), A spectral-normed and the identity at the
start. `relu=False` leaves the sum as it is. References: [Astec]; methods §5.4.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from longtail.recipe import Part, record


@record
class Bag(Part):
    """Settings of the bag encoder; `start` says where word vectors come from: random, glove, ppmi or a file."""

    part: ClassVar[str] = "bag"
    dim: int = Field(default=256, ge=1, le=8192)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    relu: bool = False
    residual: bool = True
    start: str = "random"
