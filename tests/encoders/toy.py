"""What the tests of encoders and heads share: the little that they need of a network, and small settings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from longtail.encoders.cnn import Cnn
from longtail.encoders.inception import Inception
from longtail.parts import Step
from longtail.training.noise import StoredNoise
from longtail.training.tables import LocalTable

TEXTS = ["red cat", "old dog", "red fox fox", "", "a wild cat and an old fox"]


class Toy:
    """The little that a tower or a head needs of a network."""

    def __init__(self, seed: int = 0, *, frozen: bool = False) -> None:
        self.noise, self.fit, self.frozen = StoredNoise(seed), SimpleNamespace(seed=seed), frozen
        self.half = None

    def table(self, values, *, frozen: bool = False, of_labels: bool = False) -> LocalTable:
        return LocalTable(torch.from_numpy(np.array(values)), "adam", frozen)

    def step(self, seed: int = 0, augmentations=()) -> Step:
        return Step(np.random.default_rng(seed), 1.0, self, augmentations)


def inception(**changes) -> Inception:
    return Inception(**({"dim": 64, "max_tokens": 5, "channels": 6, "init": "random"} | changes))


def cnn(**changes) -> Cnn:
    return Cnn(**({"dim": 8, "max_tokens": 5, "filters": 4, "width": 6} | changes))


def moved(layers, seed: int = 0):
    """Move every parameter of layers, so that they are ready to encode and nothing is as it started."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
        for name, buffer in layers.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=draw))
    return layers.eval()


def start_of(words, dim: int) -> dict[str, np.ndarray]:
    """Draw word vectors, and how much each word weighs in the sums of label texts."""
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(len(words), dim)).astype(np.float32)
    return {"words": vectors, "weights": draw.uniform(0.5, 2, len(words)).astype(np.float32)}
