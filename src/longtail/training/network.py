"""ENCODER + LABEL ROWS + LOSS → NETWORK: what the loop trains, and what it leaves behind as an index."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from longtail.classifiers.linear import Linear
from longtail.data.dataset import Split
from longtail.data.tokens import Words
from longtail.encoders.bag import Bag
from longtail.encoders.layers import BagEncoder
from longtail.errors import RecipeError
from longtail.losses import LOSSES
from longtail.recipe import Part, Recipe
from longtail.shortlists.pool import Pool
from longtail.shortlists.vectors import VectorIndex, unit
from longtail.training.settings import Training
from longtail.training.tables import Table
from longtail.types import Floats, LabelMatrix


@dataclass(frozen=True)
class Plan:
    """The parts of a recipe that the network is made of."""

    encoder: Bag
    classifier: Linear
    pool: Pool
    loss: str
    training: Training


def plan_of(recipe: Recipe) -> Plan:
    """Check that a recipe has the parts of a network."""
    parts: dict[str, type[Part]] = {"encoder": Bag, "shortlist": Pool, "classifier": Linear, "training": Training}
    for name, kind in parts.items():
        if not isinstance(getattr(recipe, name), kind):
            raise RecipeError(f"{recipe.name}: {name} must be {kind.part!r} here, not {getattr(recipe, name)!r}")
    return Plan(recipe.encoder, recipe.classifier, recipe.shortlist, recipe.loss, recipe.training)  # type: ignore[arg-type]


class Dense(nn.Module):
    """The small parameters that every step changes."""

    def __init__(self, encoder: BagEncoder, scale: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.log_scale = nn.Parameter(torch.tensor([math.log(scale)]))


class BagNetwork:
    """A bag encoder with label rows, scored against the pool of each batch."""

    def __init__(self, plan: Plan, words: Words, train: Split, labels: sp.csr_array, *, seed: int) -> None:
        self.plan, self.words, self.labels = plan, words, labels
        self.bags = words.bag(train.need_texts("training"))
        self.targets, self.excluded = train.targets, train.excluded
        made = np.zeros(len(train), np.bool_) if train.augmented is None else train.augmented
        self.weights = np.where(made, plan.training.augmented, 1.0).astype(np.float32)
        start = np.random.default_rng([seed, 0]).standard_normal((len(words), plan.encoder.dim), np.float32)
        vectors = start / np.float32(math.sqrt(plan.encoder.dim))
        torch.manual_seed(seed)
        self.dense = Dense(BagEncoder(plan.encoder, seed=seed), plan.classifier.scale)
        optimiser = plan.training.optimiser
        rows = start_rows(plan.classifier, vectors, self.bags, labels, self.targets)
        self.tables = {
            "words": Table(torch.from_numpy(vectors), optimiser),
            "labels": Table(torch.from_numpy(rows), optimiser),
        }
        if plan.classifier.bias:
            rare = -math.log(max(len(train.labels), 2) / max(train.targets.nnz / max(len(train), 1), 1))
            self.tables["bias"] = Table(torch.full((len(train.labels),), rare), optimiser)

    def loss(self, points: NDArray[np.int64], draw: np.random.Generator) -> Tensor:
        """Gather the words and labels of a batch and compute its loss."""
        bags, positives = self.bags[points], self.targets[points]
        pool = self.plan.pool.labels(positives, draw)
        texts = self.labels[pool] if self.plan.classifier.text else None
        used = bags.indices if texts is None else np.concatenate([bags.indices, texts.indices])
        words = np.unique(used).astype(np.int64)
        vectors = self.tables["words"].gather(words)
        rows = self.tables["labels"].gather(pool)
        encoder = self.dense.encoder
        encoded = encoder(bags, words, vectors, draw)
        if texts is not None:
            rows = rows + encoder(texts, words, vectors, draw)
        if self.plan.classifier.cosine:
            encoded, rows = functional.normalize(encoded), functional.normalize(rows)
        scores = encoded @ rows.T * self.dense.log_scale.exp()
        if "bias" in self.tables:
            scores = scores + self.tables["bias"].gather(pool)
        targets = spread(positives, pool)
        excluded = self.excluded[points]
        counted = None if excluded.nnz == 0 else spread(excluded, pool) == 0
        return LOSSES[self.plan.loss](scores, targets, counted, torch.from_numpy(self.weights[points]))

    @torch.no_grad()
    def index(self) -> VectorIndex:
        """Turn what was learnt into arrays that score without torch."""
        layer = self.dense.encoder.arrays()
        held = (layer["layer.weight"], layer["layer.bias"]) if layer else None
        vectors, rows = (self.tables[name].values.numpy().copy() for name in ("words", "labels"))
        classifier, relu = self.plan.classifier, self.plan.encoder.relu
        blank = np.zeros(len(rows), np.float32)
        index = VectorIndex(self.words, vectors, rows, blank, held, relu, cosine=False)
        if classifier.text:
            for start in range(0, len(rows), 8192):
                rows[start : start + 8192] += index.encode(self.labels[start : start + 8192])
        scale = float(self.dense.log_scale.exp())
        bias = np.asarray(self.tables["bias"].values.numpy() / scale, np.float32) if "bias" in self.tables else blank
        return VectorIndex(
            self.words, vectors, unit(rows) if classifier.cosine else rows, bias, held, relu, classifier.cosine
        )


def start_rows(
    classifier: Linear, vectors: Floats, bags: sp.csr_array, labels: sp.csr_array, targets: LabelMatrix
) -> Floats:
    """Start label rows from their texts, the mean of their points, both or nothing."""
    rows = np.zeros((labels.shape[0], vectors.shape[1]), np.float32)
    if classifier.start in ("points", "both"):
        means = sp.csr_array(targets.T) @ bags  # (L, V), sparse: the words of a label's points
        rows += unit(np.asarray(means @ vectors, np.float32))
    if classifier.start in ("text", "both"):
        rows += unit(np.asarray(labels @ vectors, np.float32))
    return rows / np.float32(2) if classifier.start == "both" or classifier.text else rows


def spread(matrix: sp.csr_array, pool: NDArray[np.int64]) -> Tensor:
    """Lay the entries of a batch (B, L) out over its pool: (B, K); what is not in the pool is left out."""
    out = np.zeros((matrix.shape[0], len(pool)), np.float32)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    places = np.searchsorted(pool, matrix.indices)
    held = np.append(pool, -1)[places] == matrix.indices
    out[rows[held], places[held]] = matrix.data[held]
    return torch.from_numpy(out)
