"""WORDS → VECTOR by convolutions along the words, as is usual for text. References: [XML-CNN]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from longtail.encoders.ordered import OrderedEncoder
from longtail.records import record

Kernel = Annotated[int, Field(ge=1, le=512)]


@record
class Cnn(OrderedEncoder):
    """Settings of the conventional CNN: windows of words, the maximum over a few stretches, a narrow layer."""

    part: ClassVar[str] = "cnn"
    renamed: ClassVar[Mapping[str, str]] = {
        "start": "init", "words": "max_tokens", "vector": "width", "windows": "kernel_sizes", "stretches": "pools",
    }  # fmt: skip
    filters: int = Field(default=128, ge=1, le=4096)  # of each size
    kernel_sizes: tuple[Kernel, ...] = Field(default=(2, 4, 8), min_length=1, max_length=16)  # words in a window
    pools: int = Field(default=2, ge=1, le=64)  # stretches of the text of which each gives its maximum
    width: int = Field(default=512, ge=1, le=8192)  # of the narrow layer, which is the vector of a text
    dropout: float = Field(default=0.5, ge=0, lt=1)  # of the narrow layer
    embedding_dropout: float = Field(default=0.25, ge=0, lt=1)  # beside `dropout`: none where that is 0

    def layers(self, seed: int) -> Any:
        """Make the layers in torch."""
        from longtail.encoders.towers.cnn import CnnLayers  # noqa: PLC0415  (torch)

        return CnnLayers(self)
