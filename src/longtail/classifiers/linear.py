"""VECTOR × LABEL ROWS → SCORES: one free row per label, optionally on top of the vector of the label's own text.

Rows start from the label's text, from the mean of its points, from both, from chance or from nothing. With `text` the
vector of a label is its row plus what the shared encoder makes of its text ("sum": up to its head, "head": through it),
so that a label that no point has still has a vector.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from longtail.recipe import Part, record


@record
class Linear(Part):
    """Settings of the label rows."""

    part: ClassVar[str] = "linear"
    start: Literal["nothing", "random", "text", "points", "both"] = "points"
    text: Literal["sum", "head"] | None = "head"
    bias: bool = False
    cosine: bool = True
    scale: float = Field(default=20.0, gt=0)  # of cosines to logits; learnt
    dropout: float = Field(default=0.0, ge=0, lt=1)  # before the rows
