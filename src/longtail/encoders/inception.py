"""WORDS → VECTOR by convolutions along the dimensions of the embedding, so that the order of the words matters little.

Orthogonal attention (over words, then over dimensions), a projection of the words to channels, three widths side by
side, a second convolution. References: [InceptionXML]; methods §5.1, §5.2.

As a mixture, the three widths are added up with weights that each text decides, and what they took passes them by; the
second convolution is left to the head `convolved` of each objective. References: [InceptionXML-LF] appendix A.1;
methods §5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from longtail.encoders.ordered import OrderedEncoder
from longtail.records import Cost, Sizes, record


@record
class Inception(OrderedEncoder):
    """Settings of the inception encoder; the vector has channels × ((dim / 4 - 16) / 4 + 1) entries.

    A mixture has no second convolution: its vector is a flat map of channels × dim / 4 entries.
    """

    part: ClassVar[str] = "inception"
    renamed: ClassVar[Mapping[str, str]] = {
        "start": "init",
        "words": "max_tokens",
        "permuted": "permute_dims",
        "head": "head.norm, of the objective",
    }
    min_batch: ClassVar[int] = 2  # of its batch norms
    dim: int = Field(default=300, ge=64, le=4096, multiple_of=4)  # of word vectors
    channels: int = Field(default=32, ge=1, le=512)  # of each convolution
    dropout: float = Field(default=0.25, ge=0, lt=1)  # of the maps between the layers
    drop_projection: bool = False  # the one-vs-all model drops after the projection, the other does not
    attention: bool = True  # whether words look at each other before the convolutions
    branches: Literal["concatenated", "mixture"] = "concatenated"  # how convolutions of several widths are joined
    permute_dims: bool = False  # the ablation: dimensions of the embedding in another order

    @property
    def width(self) -> int:
        """The dimension of the vector."""
        places = self.dim // 4
        return self.channels * (places if self.branches == "mixture" else (places - 16) // 4 + 1)

    def layers(self, seed: int) -> Any:
        """Make the layers in torch."""
        from longtail.encoders.towers.inception import InceptionLayers  # noqa: PLC0415  (torch)

        return InceptionLayers(self, seed=seed)

    def cost(self, sizes: Sizes) -> Cost:
        """Count what a batch leaves for its way back: a dozen arrays of its words and channels."""
        cells = sizes.batch_size * self.dim * 12.0 * (self.max_tokens + self.channels)
        return super().cost(sizes) + Cost(memory=4 * cells)

    def flops(self) -> float:
        """Estimate the operations of the layers for one text."""
        words, dim, width = self.max_tokens, self.dim, self.channels
        attention = 6.0 * words * words * dim + 2.0 * words * dim * dim if self.attention else 0.0
        second = 0.0 if self.branches == "mixture" else 6.0 * width * width * dim
        return attention + 2.0 * words * dim * width + 14.0 * width * width * dim + second
