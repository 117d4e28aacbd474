"""BATCH → MIXED BATCH: the mix-ups that TailMix is compared with, each of which mixes two points at another depth.

References: [TailMix]; Guo et al. 2019 (wordMix), Verma et al. 2019 (hiddenMix), Chen et al. 2020 (TMix); methods §6.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from longtail.augment.mixed import Mixed, blended
from longtail.augment.mixup import MixUp, PointMixer
from longtail.errors import RecipeError
from longtail.parts import Fit, Place, Step
from longtail.records import record
from longtail.types import LabelMatrix


@record
class WordMix(MixUp):
    """Settings of wordMix: the embedded words of two points are mixed, place by place."""

    part: ClassVar[str] = "wordmix"


@record
class HiddenMix(MixUp):
    """Settings of hiddenMix: two points are mixed at a depth that every step draws anew.

    That is among embedded words, states and, where labels look at words, their contexts and what the layer behind makes
    of these.
    """

    part: ClassVar[str] = "hiddenmix"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "embeddings", "states", "contexts", "hidden")

    def prepare(self, fit: Fit) -> DepthMixer:
        """Find the depths that the recipe has."""
        depths: tuple[Place, ...] = ("embeddings", "states")
        classifiers = [objective.classifier for objective in fit.recipe.objectives]
        if any(classifier.part == "label_attention" for classifier in classifiers):
            depths += ("contexts", "hidden")
        return DepthMixer(self, depths)


@dataclass(frozen=True, eq=False)
class DepthMixer(PointMixer):
    """HiddenMix made ready."""

    depths: tuple[Place, ...] = ()
    acts_on: ClassVar[tuple[Place, ...]] = HiddenMix.acts_on

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Draw partners and a depth for a batch, or mix where that is."""
        if place == "batch":
            out = super().apply(place, value, step)
            step.memory[self, "depth"] = self.depths[int(step.draw.integers(len(self.depths)))]
            return out
        if place != step.memory[self, "depth"]:
            return value
        if place == "states":
            tokens = None if value.tokens is None else super().apply(place, value.tokens, step)
            partners = _as_tensor(step.memory[self].points, value.pooled)
            mask = None if value.mask is None else value.mask | value.mask[partners]
            return replace(value, pooled=super().apply(place, value.pooled, step), tokens=tokens, mask=mask)
        if place == "contexts":
            mixed = step.memory[self]
            share, partners = (_as_tensor(array, value.weights) for array in (mixed.share, mixed.points))
            return replace(value, share=share, partners=partners)
        return super().apply(place, value, step)


@record
class TMix(MixUp):
    """Settings of TMix: what a layer of a transformer makes of two texts is mixed, and the layers above go on with it.

    The layer is drawn from `depths`, shares of the depth of the encoder: 7, 9 and 12 of 12 layers in the paper. The
    larger share is always the point's own.
    """

    part: ClassVar[str] = "tmix"
    acts_on: ClassVar[tuple[Place, ...]] = ("batch", "layers")
    alpha: float = 16.0  # of the Beta distribution that the share is drawn from
    depths: tuple[float, ...] = (7 / 12, 9 / 12, 1.0)  # layers that are mixed, as shares of the depth of the encoder

    def check(self, recipe: Any) -> None:
        """Ask for an encoder with layers."""
        if recipe.encoder is None or recipe.encoder.part != "transformer":
            raise RecipeError(f"{recipe.name}: tmix mixes between layers of a transformer: --set encoder=transformer")
        if not self.depths or not all(0 < depth <= 1 for depth in self.depths):
            raise RecipeError(f"{recipe.name}: tmix.depths are shares of the layers, above 0 and at most 1")
        super().check(recipe)

    def prepare(self, fit: Fit) -> LayerMixer:
        """Return what mixes the batches."""
        return LayerMixer(self)


@dataclass(frozen=True, eq=False)
class LayerMixer(PointMixer):
    """TMix made ready."""

    settings: TMix
    acts_on: ClassVar[tuple[Place, ...]] = TMix.acts_on

    def draw(self, targets: LabelMatrix, random: np.random.Generator) -> Mixed:
        """Draw partners and shares, of which the larger one is the point's own."""
        mixed = super().draw(targets, random)
        assert mixed.share is not None and mixed.points is not None, "MixUp draws both"
        share = np.maximum(mixed.share, 1 - mixed.share)
        return replace(mixed, targets=blended(targets, targets[mixed.points], share), share=share)

    def apply(self, place: Place, value: Any, step: Step) -> Any:
        """Draw partners and a layer for a batch, or mix behind that layer: `value` is its place and what it gave."""
        if place == "batch":
            out = super().apply(place, value, step)
            depths = self.settings.depths
            step.memory[self, "depth"] = depths[int(step.draw.integers(len(depths)))]
            return out
        number, layers, states = value
        if number != max(1, round(step.memory[self, "depth"] * layers)):
            return value
        return number, layers, super().apply(place, states, step)


def _as_tensor(array: Any, like: Any) -> Any:
    """Put an array where a tensor is."""
    import torch  # noqa: PLC0415

    return torch.as_tensor(array, device=like.device)
