"""BATCH → A BATCH AND ITS MIXED TEXTS: words that matter least give way to those of another text that matter most.

The points of a batch are paired; each text of a pair takes a span of the other. How much a word matters is the gradient
of the loss at its embedding, by a pass of its own. Both texts of a pair are learnt as they are, too. References:
Yoon et al. 2021 (SSMix); methods §6.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.augment.mixed import blended
from longtail.errors import RecipeError
from longtail.parts import Augmentation, Batch, Fit, Place, Step
from longtail.records import record
from longtail.types import Floats


@record
class SSMix(Augmentation):
    """Settings of SSMix."""

    part: ClassVar[str] = "ssmix"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch",)
    span: float = Field(default=0.1, gt=0, lt=1)  # share of a text that is exchanged, at least a word

    def check(self, recipe: Any) -> None:
        """Ask for words in order."""
        if recipe.encoder is None or recipe.encoder.sums_words:
            raise RecipeError(
                f"{recipe.name}: ssmix exchanges spans of words, and a bag has no order: --set encoder=recurrent"
            )
        before = recipe.augment[: recipe.augment.index(self)]
        if late := [part.part for part in before if {"embeddings", "states", "layers"} & {*part.acts_on}]:
            raise RecipeError(
                f"{recipe.name}: ssmix makes points for {late[0]} to mix: name it first, +ssmix+{late[0]}"
            )
        super().check(recipe)

    def prepare(self, fit: Fit) -> SpanMixer:
        """Return what mixes the batches."""
        return SpanMixer(self, fit.recipe.encoder.frame)


@dataclass(frozen=True, eq=False)
class SpanMixer:
    """SSMix made ready."""

    settings: SSMix
    frame: int  # tokens before and behind every text that are no words
    acts_on: ClassVar[tuple[Place, ...]] = SSMix.acts_on

    def apply(self, place: Place, value: Batch, step: Step) -> Batch:
        """Add the mixed texts of a batch to it."""
        half = len(value.rows) // 2
        if not half:
            return value
        chance = np.random.default_rng(step.draw.integers(2**63))  # the pass must not change what the step draws
        saliency = step.network.saliency(value, chance)
        order = step.draw.permutation(len(value.rows))
        ones, others = order[:half], order[half : 2 * half]
        first, second = np.concatenate([ones, others]), np.concatenate([others, ones])
        inputs: Any = value.inputs
        ids, share = mixed_spans(inputs.ids, saliency, first, second, self.settings.span, self.frame)
        targets = blended(value.targets[first], value.targets[second], share)
        return replace(
            value,
            rows=np.concatenate([value.rows, value.rows[first]]),
            inputs=replace(inputs, ids=np.concatenate([inputs.ids, ids])),
            targets=sp.csr_array(sp.vstack([value.targets, targets])),
            excluded=sp.csr_array(sp.vstack([value.excluded, value.excluded[first]])),
            weights=np.concatenate([value.weights, value.weights[first]]),
        )


def mixed_spans(
    ids: NDArray[np.int32], saliency: Floats, first: NDArray[Any], second: NDArray[Any], span: float, frame: int
) -> tuple[NDArray[np.int32], Floats]:
    """Put the span of each second text that matters most in the place of the first one's that matters least.

    Returns word ids (P, T), and what share of the targets stays the first text's own.

    >>> ids = np.array([[5, 6, 7, 0], [8, 9, 0, 0]], np.int32)
    >>> matters = np.array([[1, 0.2, 0.5, 0], [0.3, 1, 0, 0]], np.float32)
    >>> out, share = mixed_spans(ids, matters, np.array([0]), np.array([1]), 0.1, 0)
    >>> out.tolist(), round(float(share[0]), 2)
    ([[5, 9, 7, 0]], 0.67)
    """
    out, share = ids[first].copy(), np.ones(len(first), np.float32)
    lengths = (ids > 0).sum(axis=1) - 2 * frame
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        width = max(1, int(span * lengths[one]))
        if min(lengths[one], lengths[two]) < width + (width == lengths[one]):
            continue  # nothing of the first text would stay, or the second has no such span
        least = frame + int(windows(saliency[one, frame : frame + lengths[one]], width).argmin())
        most = frame + int(windows(saliency[two, frame : frame + lengths[two]], width).argmax())
        out[place, least : least + width] = ids[two, most : most + width]
        share[place] = 1 - width / lengths[one]
    return out, share


def windows(values: Floats, width: int) -> Floats:
    """Return the means of all stretches of that width."""
    return np.convolve(values, np.full(width, 1 / width, np.float32), "valid").astype(np.float32)
