"""Settings of the encoders that convolve; the layers themselves are in `modules`.

`inception` convolves along the dimensions of the embedding, so that the order of the words matters little: orthogonal
attention (over words, then over dimensions), a projection of the words to channels, three widths side by side, a second
convolution. `cnn` convolves along the words, as is usual for text.
References: [InceptionXML]; methods §5.1, §5.2; [XML-CNN].
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from longtail.recipe import Part, record


@record
class Inception(Part):
    """Settings of the inception encoder; the vector has channels × ((dim / 4 - 16) / 4 + 1) entries."""

    part: ClassVar[str] = "inception"
    dim: int = Field(default=300, ge=64, le=4096, multiple_of=4)
    words: int = Field(default=32, ge=1, le=512)
    channels: int = Field(default=32, ge=1, le=512)
    dropout: float = Field(default=0.25, ge=0, lt=1)
    drop_projection: bool = False  # the one-vs-all model drops after the projection, the other does not
    head: Literal["batchnorm", "spectral"] = "spectral"
    attention: bool = True
    permuted: bool = False  # the ablation: dimensions of the embedding in another order
    start: str = "glove"

    @property
    def vector(self) -> int:
        """The dimension of the vector."""
        return self.channels * ((self.dim // 4 - 16) // 4 + 1)


@record
class Cnn(Part):
    """Settings of the conventional CNN: windows of words, the maximum over a few stretches, a narrow layer."""

    part: ClassVar[str] = "cnn"
    dim: int = Field(default=300, ge=1, le=4096)
    words: int = Field(default=32, ge=1, le=512)
    filters: int = Field(default=128, ge=1, le=4096)
    windows: tuple[int, ...] = (2, 4, 8)
    stretches: int = Field(default=2, ge=1, le=64)
    vector: int = Field(default=512, ge=1, le=8192)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    start: str = "glove"
