"""TOKEN STATES × LABELS → SCORES: each label looks at its own words, and layers that all share score what it saw.

A label's row w gives weights to the words of a text, a = softmax(H w); the layers score its context, c = a H. The first
layer is linear, so that it passes the states once instead of the contexts of all labels. References: [AttentionXML];
methods §5.12.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from longtail.arrays import Array, checked
from longtail.classifiers.products import log_prior
from longtail.errors import RecipeError
from longtail.parts import (
    TARGETS,
    BuiltHead,
    Classifier,
    Contexts,
    FrozenHead,
    FrozenTower,
    Network,
    Points,
    States,
    Step,
    Table,
    TextsAs,
)
from longtail.records import Cost, Sizes, record
from longtail.scorers.attention import AttentionScorer, word_weights
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.stores.memory import MemoryStore
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor, nn

CELLS = 2**24  # weights of words (B, K, T), or of a layer behind them, that a step keeps for its way back
LABELS, WORDS = 512, 160  # of a usual step


@record
class LabelAttention(Classifier):
    """Settings of the label-wise attention; `layers` are the hidden ones behind it."""

    part: ClassVar[str] = "label_attention"
    hands_down: ClassVar[bool] = True
    layers: tuple[int, ...] = (128,)  # widths of the hidden layers behind the attention

    def check(self, recipe: Any) -> None:
        """Ask for an encoder with a state for each word, and for no head behind it."""
        if not recipe.encoder.has_tokens:
            raise RecipeError(
                f"{recipe.name}: label_attention needs a state for each word: --set encoder=recurrent, or "
                "--set encoder=transformer --set encoder.tokens=true"
            )
        if any(one.head is not None for one in recipe.objectives if one.classifier == self):
            raise RecipeError(f"{recipe.name}: label_attention reads states as they are, not behind a head: head=none")
        if any(size < 1 for size in self.layers) or not self.layers:
            raise RecipeError(f"{recipe.name}: classifier.layers are the sizes of at least one layer, such as [128]")
        super().check(recipe)

    def cost(self, sizes: Sizes) -> Cost:
        """Count the rows with their moments, a copy to serve and one to save, and what a usual step keeps."""
        table = 4.0 * sizes.labels * sizes.width
        step = 4.0 * min(CELLS, sizes.batch_size * LABELS * WORDS)
        return Cost(memory=(2 + (1 + sizes.moments) / sizes.processes) * table + 6 * step, disk=table)

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltAttention:
        """Make rows and layers."""
        return BuiltAttention(self, points, width, network)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> AttentionScorer:
        """Put rows and layers of a model file together."""
        sizes = [width, *self.layers, 1]
        layers = []
        for place, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
            own = f"attention.{place}"
            weight, bias = checked(arrays, (Array(f"{own}.weight", (narrow, wide)), Array(f"{own}.bias", (narrow,))))
            layers.append((weight, bias))
        first = VectorScorer.of_arrays(arrays, tower, Projection(None, False), width, reads_labels=False)
        return AttentionScorer(**vars(first) | {"layers": tuple(layers)})


class BuiltAttention:
    """Rows and layers while they are trained."""

    texts_as: ClassVar[TextsAs] = "tower"

    def __init__(self, settings: LabelAttention, points: Points, width: int, network: Network) -> None:
        from torch import nn  # noqa: PLC0415

        self.settings, labels = settings, points.targets.shape[1]
        limit = math.sqrt(6 / (labels + width))
        draw = np.random.default_rng([network.fit.seed, 5])
        self.rows = network.table(draw.uniform(-limit, limit, (labels, width)).astype(np.float32), of_labels=True)
        self.tables: dict[str, Table] = {"rows": self.rows}
        sizes = [width, *settings.layers, 1]
        self.module: nn.Module = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for layer in self.module:
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.constant_(layer.bias, log_prior(points))  # type: ignore[arg-type]

    def texts(self, labels: NDArray[np.int64]) -> None:
        """Ask for no label texts."""

    def __call__(self, states: States, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Score a batch against labels: (B, K); many labels in parts, which are computed again on the way back."""
        import torch  # noqa: PLC0415
        from torch.utils.checkpoint import checkpoint  # noqa: PLC0415

        assert states.tokens is not None and states.mask is not None, "LabelAttention.check has seen the encoder"
        rows = self.rows.gather(labels)
        whole = TARGETS in step.memory and any("contexts" in part.acts_on for part in step.augmentations)
        cells = len(states.mask) * max(states.mask.shape[1], *self.settings.layers)
        each = max(1, len(labels)) if whole else max(1, CELLS // max(1, cells))
        parts = []
        for start in range(0, max(1, len(labels)), each):  # a process may own none of them
            some = slice(start, start + each)
            given = states.tokens, states.mask, rows[some], labels[some], step
            parts.append(
                self._scores(*given)
                if each >= len(labels)
                else checkpoint(self._scores, *given, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(parts, dim=1)

    def _scores(self, tokens: Tensor, mask: Tensor, rows: Tensor, labels: NDArray[np.int64], step: Step) -> Tensor:
        """Score texts against some labels."""
        contexts = step.apply("contexts", Contexts(labels, word_weights(tokens, mask, rows), tokens))
        layers: list[Any] = list(self.module.children())
        first, *others = layers
        hidden = contexts.through(lambda states: states @ first.weight.T) + first.bias
        hidden = step.apply("hidden", hidden.relu())
        for place, layer in enumerate(others):
            hidden = layer(hidden.relu() if place else hidden)
        scores: Tensor = hidden.squeeze(2)
        return scores

    def factors(self, *_: Any) -> Any:
        """Refuse: scores are no products."""
        raise RecipeError("label_attention gives no factors; use a loss of scores, such as bce_mean")

    def freeze(self, tower: Any, head: FrozenHead | None, names: Callable[[slice], Floats] | None) -> AttentionScorer:
        """Give rows and layers as arrays."""
        store = MemoryStore.of(self.rows.values.cpu().numpy().copy())
        modules: list[Any] = list(self.module.children())
        layers = tuple(
            (layer.weight.detach().cpu().numpy().copy(), layer.bias.detach().cpu().numpy().copy()) for layer in modules
        )
        return AttentionScorer(tower, Projection(None, False), store, reads_labels=False, layers=layers)
