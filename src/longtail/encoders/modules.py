"""WORD VECTORS → VECTOR, in torch: the encoders while they are trained, and residual heads.

An encoder works in two steps so that augmentations can mix in between: `embed` looks the words of a batch up in the
rows that were gathered for it, and calling the encoder makes one vector of them.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from longtail.encoders.bag import Bag
from longtail.encoders.convolutional import Cnn, Inception
from longtail.encoders.head import Activation, Head
from longtail.encoders.inputs import Bags, Inputs, Ordered
from longtail.errors import ModelError
from longtail.types import Floats


class Noise:
    """Dropout from a store of random bytes that is read at random places: drawing fresh numbers took a third of a step.

    >>> kept = Noise(0).drop(torch.ones(1000, 100), 0.5, np.random.default_rng(0))
    >>> sorted(set(kept.flatten().tolist())), 0.98 < float(kept.mean()) < 1.02
    ([0.0, 2.0], True)
    """

    def __init__(self, seed: int) -> None:
        self.store = torch.from_numpy(np.random.default_rng([seed, 3]).integers(0, 256, 2**24, np.uint8))

    def drop(self, values: Tensor, share: float, draw: np.random.Generator) -> Tensor:
        """Zero a share of the entries, to within 1/256, and scale the others up."""
        cut, count = round(share * 256), values.numel()
        if cut == 0:
            return values
        if self.store.device != values.device:
            self.store = self.store.to(values.device)
        if count > len(self.store) // 2:
            drawn = torch.from_numpy(draw.integers(0, 256, count, np.uint8)).to(values.device)
        else:
            start = int(draw.integers(0, len(self.store) - count))
            drawn = self.store[start : start + count]
        return values * (drawn.reshape(values.shape) >= cut) * (256 / (256 - cut))


class Residual(nn.Module):
    """A residual layer, spectral-normed and the identity at the start, or followed by a batch norm."""

    def __init__(self, dim: int, activation: Activation, *, noise: Noise, norm: str = "spectral") -> None:
        super().__init__()
        self.activation, self.noise = activation, noise
        self.act = functional.relu if activation == "relu" else functional.gelu
        layer = nn.Linear(dim, dim)
        if activation == "relu":
            nn.init.eye_(layer.weight)
        else:
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        self.norm = nn.BatchNorm1d(dim) if norm == "batchnorm" else None
        # Normed after the start: what is written into the weight later does not persist.
        self.layer = layer if norm == "batchnorm" else cast(nn.Linear, spectral_norm(layer))

    def forward(self, vectors: Tensor, draw: np.random.Generator, before: float = 0.0, after: float = 0.0) -> Tensor:
        """Pass vectors (B, D) through, with dropout before and after the layer."""
        inner = self.act(self.layer(self.noise.drop(vectors, before, draw)))
        if self.norm is not None:
            inner = self.norm(inner)
        return self.noise.drop(inner, after, draw) + vectors

    @torch.no_grad()
    def frozen(self) -> Head:
        """Give the layer as plain arrays, for scoring without torch."""
        self.eval()
        weight, bias = (array.detach().cpu().numpy().copy() for array in (self.layer.weight, self.layer.bias))
        scale, shift = np.ones_like(bias), np.zeros_like(bias)
        if self.norm is not None:
            held = self.norm.state_dict()
            scale = (held["weight"] / (held["running_var"] + self.norm.eps).sqrt()).cpu().numpy()
            shift = held["bias"].cpu().numpy() - held["running_mean"].cpu().numpy() * scale
        return Head(weight, bias, scale, shift, self.activation)


class BagEncoder(nn.Module):
    """Sum word vectors."""

    def __init__(self, settings: Bag, *, seed: int) -> None:
        super().__init__()
        self.settings, self.noise = settings, Noise(seed)

    def embed(self, inputs: Bags, words: NDArray[np.int64], vectors: Tensor) -> Tensor:
        """Sum the vectors (W, D) of the words, which are sorted: (B, D)."""
        device, bags = vectors.device, inputs.matrix
        places = torch.from_numpy(np.searchsorted(words, bags.indices)).to(device)
        starts = torch.from_numpy(bags.indptr[:-1].astype(np.int64)).to(device)
        weights = torch.from_numpy(bags.data).to(device)
        return functional.embedding_bag(places, vectors, starts, mode="sum", per_sample_weights=weights)

    def forward(self, embedded: Tensor, draw: np.random.Generator | None) -> Tensor:
        """Apply relu and dropout."""
        vector = functional.relu(embedded) if self.settings.relu else embedded
        return vector if draw is None else self.noise.drop(vector, self.settings.dropout, draw)

    def head(self, noise: Noise) -> Residual | None:
        """Make Astec's residual layer."""
        return Residual(self.settings.dim, "relu", noise=noise) if self.settings.residual else None


class OrderedEncoder(nn.Module):
    """What both convolutional encoders share: words are looked up in order, and padding is zero."""

    def embed(self, inputs: Ordered, words: NDArray[np.int64], vectors: Tensor) -> Tensor:
        """Look up the vectors (W, D) of the words, which are sorted: (B, T, D)."""
        places = torch.from_numpy(np.searchsorted(words, inputs.ids)).to(vectors.device)
        shown = torch.from_numpy(inputs.ids > 0).to(vectors.device)
        return functional.embedding(places, vectors) * shown[:, :, None]

    @torch.no_grad()
    def vectors_of(self, inputs: Inputs, words: NDArray[np.int64], vectors: Floats) -> Floats:
        """Encode texts outside of training."""
        embedded = self.embed(cast(Ordered, inputs), words, torch.from_numpy(np.array(vectors)))
        return cast(Floats, self(embedded, None).numpy())


class InceptionEncoder(OrderedEncoder):
    """Orthogonal attention, a projection of words to channels, and convolutions along the embedding."""

    settings: Inception

    def __init__(self, settings: Inception, *, seed: int) -> None:
        super().__init__()
        self.settings = settings
        words, dim, width = settings.words, settings.dim, settings.channels
        if settings.attention:
            over_words, over_dims = nn.Linear(words, words, bias=False), nn.Linear(dim, dim, bias=False)
            nn.init.xavier_normal_(over_words.weight)
            nn.init.xavier_normal_(over_dims.weight)
            self.over_words, self.over_dims = spectral_norm(over_words), spectral_norm(over_dims)
            self.gates = nn.Parameter(torch.zeros(2))  # the attention starts as the identity
        self.project = nn.Linear(words, width)
        kernels = (4, 8, 16)
        self.branches = nn.ModuleList(
            nn.Conv1d(width, width, k, stride=4, padding=2 * (k // 4 - 1), padding_mode="circular") for k in kernels
        )
        self.second = nn.Conv1d(3 * width, width, 16, stride=4)
        for layer in (self.project, *self.branches, self.second):
            nn.init.xavier_uniform_(cast(nn.Linear, layer).weight)
            nn.init.zeros_(cast(nn.Linear, layer).bias)
        self.norms = nn.ModuleList(nn.BatchNorm1d(n) for n in (width, 3 * width, width))
        order = np.random.default_rng([seed, 4]).permutation(dim) if settings.permuted else np.arange(dim)
        self.register_buffer("order", torch.from_numpy(order))

    def attend(self, x: Tensor) -> Tensor:
        """Let words and then dimensions attend to each other; no softmax, as in the paper (B, T, D)."""
        by_words = x @ x.transpose(1, 2) @ self.over_words(x.transpose(1, 2)).transpose(1, 2)
        first = self.gates[0] * by_words + x
        # (U Vᵀ)(W U) with U = firstᵀ, V = xᵀ, grouped as U (Vᵀ (W U)): T² D instead of T D² for two of three products.
        inner = x @ self.over_dims(first).transpose(1, 2)  # (B, T, T)
        attended: Tensor = self.gates[1] * (inner.transpose(1, 2) @ first) + first
        return attended

    def forward(self, embedded: Tensor, draw: np.random.Generator | None) -> Tensor:
        """Encode (B, T, D) as (B, vector); dropout follows torch's own generator."""
        settings, share = self.settings, self.settings.dropout if draw is not None else 0.0
        x = embedded[:, :, self.order] if settings.permuted else embedded  # type: ignore[index]
        x = functional.dropout(x, share)
        x = self.attend(x) if settings.attention else x
        x = self.norms[0](functional.gelu(self.project(x.transpose(1, 2)).transpose(1, 2)))  # (B, C, D)
        x = functional.dropout(x, share) if settings.drop_projection else x
        x = torch.cat([branch(x) for branch in self.branches], dim=1)  # (B, 3 C, D / 4)
        x = functional.dropout(self.norms[1](functional.gelu(x)), share)
        vector: Tensor = self.norms[2](functional.gelu(self.second(x))).flatten(1)
        return vector

    def head(self, noise: Noise) -> Residual:
        """Make the residual layer before label rows."""
        return Residual(self.settings.vector, "gelu", noise=noise, norm=self.settings.head)


class CnnEncoder(OrderedEncoder):
    """Windows of words, the maximum over stretches of the text, and a narrow layer."""

    settings: Cnn

    def __init__(self, settings: Cnn, *, seed: int) -> None:
        super().__init__()
        self.settings = settings
        self.windows = nn.ModuleList(
            nn.Conv1d(settings.dim, settings.filters, window, padding=window // 2) for window in settings.windows
        )
        self.narrow = nn.Linear(settings.filters * len(settings.windows) * settings.stretches, settings.vector)

    def forward(self, embedded: Tensor, draw: np.random.Generator | None) -> Tensor:
        """Encode (B, T, D) as (B, vector)."""
        x = embedded.transpose(1, 2)
        found = [functional.relu(window(x)) for window in self.windows]
        most = [functional.adaptive_max_pool1d(part, self.settings.stretches).flatten(1) for part in found]
        vector = functional.relu(self.narrow(torch.cat(most, dim=1)))
        return functional.dropout(vector, self.settings.dropout if draw is not None else 0.0)

    def head(self, noise: Noise) -> None:
        """Label rows stand directly on the narrow layer."""


MODULES = {Bag: BagEncoder, Inception: InceptionEncoder, Cnn: CnnEncoder}


def encoder_of(settings: Any, *, seed: int, layers: dict[str, NDArray[Any]] | None = None) -> Any:
    """Build an encoder; with `layers`, ready to encode with what was learnt."""
    torch.manual_seed(seed)
    made = MODULES[type(settings)](settings, seed=seed)
    if layers is not None:
        wanted = made.state_dict()
        wrong = set(wanted) ^ set(layers) or [n for n in wanted if wanted[n].shape != layers[n].shape]
        if wrong:
            raise ModelError(f"the layers of the encoder do not fit its settings ({sorted(wrong)[0]}); train again")
        made.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in layers.items()})
        made.eval()
    return made
