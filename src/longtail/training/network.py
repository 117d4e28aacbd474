"""ENCODER + SHORTLIST + LABEL ROWS + LOSS → NETWORK: what the loop trains, and what it leaves behind as an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from longtail.augment.mixed import Mixed, Mixer
from longtail.classifiers.linear import Linear
from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.encoders.encoding import BagEncoding, Encoding, OrderedEncoding
from longtail.encoders.inputs import Bags, Inputs
from longtail.encoders.modules import Noise, Residual, encoder_of
from longtail.labels.tree import Clusters
from longtail.losses import LOSSES, binary_cross_entropy_mean
from longtail.recipe import Part
from longtail.shortlists.exact import top_products, unit
from longtail.shortlists.meta import Meta, MetaGuide
from longtail.shortlists.pool import Everything, Pool
from longtail.shortlists.vectors import VectorIndex
from longtail.training.settings import Training
from longtail.training.tables import Table
from longtail.types import Floats, LabelMatrix, rows_of

CHUNK = 4096  # texts encoded at once outside of training


@dataclass(frozen=True, eq=False)
class Points:
    """The training points as numbers, and the texts of the labels."""

    inputs: Inputs
    targets: LabelMatrix  # (N, L), soft values allowed
    excluded: LabelMatrix  # (N, L) pairs that must not be learnt from
    weights: Floats  # (N,)
    vocabulary: Words | Sequences
    names: Inputs | None = None  # (L,)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a network is made of."""

    encoder: Part
    shortlist: Part
    classifier: Linear
    loss: str
    training: Training
    frozen: tuple[str, ...] = ()  # tables, or the encoder, that stay as they are
    mixers: Sequence[Mixer] = ()
    replace: Callable[[NDArray[Any], np.random.Generator], NDArray[Any]] | None = None
    clusters: Clusters | None = None
    mined: sp.csr_array | None = field(default=None)  # (N, L) hard negatives


class Dense(nn.Module):
    """The small parameters that every step changes."""

    def __init__(self, plan: Plan, *, seed: int) -> None:
        super().__init__()
        self.encoder = encoder_of(plan.encoder, seed=seed)
        self.noise = Noise(seed)
        self.head: Residual | None = self.encoder.head(self.noise)
        self.log_scale = nn.Parameter(
            torch.tensor([math.log(plan.classifier.scale) if plan.classifier.cosine else 0.0])
        )
        self.meta_head: Residual | None = None
        self.meta_rows: nn.Linear | None = None
        if isinstance(plan.shortlist, Meta) and plan.clusters is not None:
            if plan.shortlist.framework == "synchronised":
                self.meta_head = self.encoder.head(self.noise)
            self.meta_rows = nn.Linear(vector_size(plan.encoder), len(plan.clusters))
            nn.init.xavier_uniform_(self.meta_rows.weight)
            nn.init.zeros_(self.meta_rows.bias)


class Network:
    """An encoder with label rows, scored against the shortlist of each batch."""

    def __init__(self, plan: Plan, points: Points, vectors: Floats, *, seed: int, device: str = "cpu") -> None:
        self.plan, self.points, self.device = plan, points, torch.device(device)
        self.dense = Dense(plan, seed=seed).to(self.device)
        self.dense.encoder.requires_grad_("encoder" not in plan.frozen)
        self.mined = plan.mined
        optimiser = plan.training.optimiser
        rows = self._start_rows(vectors, seed)
        self.tables = {
            "words": Table(torch.from_numpy(vectors).to(self.device), optimiser, "words" in plan.frozen),
            "labels": Table(torch.from_numpy(rows).to(self.device), optimiser, "labels" in plan.frozen),
        }
        if plan.classifier.bias:
            count, each = len(rows), points.targets.nnz / max(len(points.inputs), 1)
            rare = -math.log(max(count, 2) / max(each, 1)) if isinstance(plan.shortlist, Everything) else 0.0
            self.tables["bias"] = Table(torch.full((count,), rare, device=self.device), optimiser)

    def _start_rows(self, vectors: Floats, seed: int) -> Floats:
        """Start label rows from their texts, the mean of their points, both or nothing."""
        classifier, points = self.plan.classifier, self.points
        count, dim = points.targets.shape[1], vector_size(self.plan.encoder)
        if classifier.start == "random":
            limit = math.sqrt(6 / (count + dim))
            return np.random.default_rng([seed, 5]).uniform(-limit, limit, (count, dim)).astype(np.float32)
        rows = np.zeros((count, dim), np.float32)
        if isinstance(points.inputs, Bags) and classifier.start in ("points", "both"):
            means = sp.csr_array(points.targets.T) @ points.inputs.matrix  # (L, V), sparse: the words of its points
            rows += unit(np.asarray(means @ vectors, np.float32))
        if isinstance(points.names, Bags) and classifier.start in ("text", "both"):
            rows += unit(np.asarray(points.names.matrix @ vectors, np.float32))
        return rows / np.float32(2) if classifier.start == "both" or classifier.text else rows

    def loss(self, points: NDArray[np.int64], draw: np.random.Generator, part: float = 1.0) -> Tensor:
        """Gather the words and labels of a batch and compute its loss; `part` of the training is done."""
        plan, data = self.plan, self.points
        inputs, targets = data.inputs.take(points), data.targets[points]
        if plan.replace is not None:
            inputs = inputs.replaced(lambda ids: plan.replace(ids, draw))  # type: ignore[misc]
        mixes = []
        for mixer in plan.mixers:
            mixed = mixer.draw(targets, draw)
            targets = mixed.targets
            mixes.append(mixed)
            if mixed.followed is not None and data.names is not None:
                inputs = inputs.followed(data.names, mixed.followed)
        excluded = data.excluded[points]
        with_text = plan.classifier.text and data.names is not None
        pool = None
        if not isinstance(plan.shortlist, Meta):
            pool = self._pool(points, targets, draw)
        partners = [data.names.take(np.maximum(m.labels, 0)) for m in mixes if m.labels is not None and data.names]
        texts = data.names.take(pool) if with_text and pool is not None and data.names is not None else None
        used = [inputs.words(), *(part.words() for part in partners), *([texts.words()] if texts else [])]
        words = np.unique(np.concatenate(used))
        vectors = self.tables["words"].gather(words)
        embedded = self.dense.encoder.embed(inputs, words, vectors)
        for mixed in mixes:
            embedded = self._mixed(embedded, mixed, partners, words, vectors)
        encoded = self.dense.encoder(embedded, draw)
        weights = torch.from_numpy(data.weights[points]).to(self.device)
        counted, extra = None, None
        if pool is None:
            pool, counted, extra = self._by_clusters(encoded, targets, excluded, weights, draw)
            encoded = encoded.detach() if self._detached(part) else encoded
        scores = self._scores(encoded, pool, texts, words, vectors, draw)
        if excluded.nnz:
            allowed = spread(excluded, pool, self.device) == 0
            counted = allowed if counted is None else counted & allowed
        wanted = spread(targets, pool, self.device)
        loss = LOSSES[plan.loss](scores, wanted, counted, weights)
        return loss if extra is None else loss + extra

    def _pool(self, points: NDArray[np.int64], targets: LabelMatrix, draw: np.random.Generator) -> NDArray[np.int64]:
        """Choose the labels that the batch is scored against."""
        if isinstance(self.plan.shortlist, Pool):
            return self.plan.shortlist.labels(targets, draw, None if self.mined is None else self.mined[points])
        return np.arange(targets.shape[1])

    def _mixed(
        self, embedded: Tensor, mixed: Mixed, partners: list[Any], words: NDArray[np.int64], vectors: Tensor
    ) -> Tensor:
        """Mix the embedding of each point with that of its partner."""
        if mixed.share is None:
            return embedded
        if mixed.labels is not None:
            others = self.dense.encoder.embed(partners.pop(0), words, vectors)
        else:
            others = embedded[torch.from_numpy(mixed.points).to(self.device)]
        share = torch.from_numpy(mixed.share).to(self.device).reshape(-1, *[1] * (embedded.dim() - 1))
        mixture: Tensor = share * embedded + (1 - share) * others
        return mixture

    def _scores(
        self, encoded: Tensor, pool: NDArray[np.int64], texts: Inputs | None, words: NDArray[np.int64],
        vectors: Tensor, draw: np.random.Generator,
    ) -> Tensor:  # fmt: skip
        """Score a batch against its pool: (B, K)."""
        classifier, dense = self.plan.classifier, self.dense
        rows = self.tables["labels"].gather(pool)
        encoded = self._headed(encoded, draw)
        if texts is not None:
            names = dense.encoder(dense.encoder.embed(texts, words, vectors), draw)
            rows = rows + (self._headed(names, draw) if classifier.text == "head" else names)
        if classifier.cosine:
            encoded, rows = functional.normalize(encoded), functional.normalize(rows)
            encoded = encoded * dense.log_scale.exp()
        scores = dense.noise.drop(encoded, classifier.dropout, draw) @ rows.T
        return scores + self.tables["bias"].gather(pool) if "bias" in self.tables else scores

    def _headed(self, vectors: Tensor, draw: np.random.Generator) -> Tensor:
        """Pass vectors through the head, with the encoder's dropout."""
        if self.dense.head is None:
            return vectors
        share = self.dense.encoder.settings.dropout
        relu = self.dense.head.activation == "relu"  # Astec drops behind the layer, InceptionXML before it
        out: Tensor = self.dense.head(vectors, draw, 0.0 if relu else share, share if relu else 0.0)
        return out

    def _detached(self, part: float) -> bool:
        """Tell whether the label rows are still kept from changing the encoder."""
        meta = self.plan.shortlist
        return isinstance(meta, Meta) and meta.framework == "synchronised" and part < meta.detached

    def _by_clusters(
        self, encoded: Tensor, targets: LabelMatrix, excluded: LabelMatrix, weights: Tensor, draw: np.random.Generator
    ) -> tuple[NDArray[np.int64], Tensor, Tensor]:
        """Score the clusters; give the union of all candidates, which of them each point sees, and a loss."""
        meta, clusters, dense = self.plan.shortlist, self.plan.clusters, self.dense
        assert isinstance(meta, Meta)
        assert clusters is not None
        assert dense.meta_rows is not None
        share = dense.encoder.settings.dropout
        vectors = encoded if dense.meta_head is None else dense.meta_head(encoded, draw, share)
        scores = dense.meta_rows(dense.noise.drop(vectors, meta.dropout, draw))
        every = np.arange(len(clusters))
        wanted = spread(clusters.targets(targets), every, self.device)
        counted = None
        if excluded.nnz:  # a cluster that holds an excluded label is wrong for nobody
            counted = (wanted > 0) | (spread(clusters.targets(excluded), every, self.device) == 0)
        loss = binary_cross_entropy_mean(scores, wanted, counted, weights)
        with torch.no_grad():
            # Positives are lifted above every score, so that their clusters are always chosen.
            lifted = torch.sigmoid(scores.float()) + (wanted > 0)
            top = min(meta.top, len(clusters))
            chosen = torch.zeros_like(lifted, dtype=torch.bool)
            chosen.scatter_(1, lifted.topk(top, dim=1).indices, True)
            chosen |= wanted > 0
        pool = self._union(chosen.cpu().numpy(), wanted.cpu().numpy() > 0, meta.most)
        own = torch.from_numpy(clusters.of[pool].astype(np.int64)).to(self.device)
        return pool, chosen[:, own], loss

    def _union(self, chosen: NDArray[np.bool_], wanted: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
        """List the labels of the chosen clusters, those of positives first, then those that most points chose."""
        clusters = self.plan.clusters
        assert clusters is not None
        votes = chosen.sum(axis=0) + len(chosen) * wanted.any(axis=0)
        order = np.argsort(-votes, kind="stable")[: int((votes > 0).sum())]
        sizes = np.diff(clusters.starts)[order]
        needed = int(wanted.any(axis=0).sum())
        kept = max(int(np.searchsorted(np.cumsum(sizes), most, "right")), needed)
        labels = clusters.labels_of(np.sort(order[:kept])[None]).ravel()
        return np.sort(labels[labels >= 0]).astype(np.int64)

    @torch.no_grad()
    def vectors_of(self, inputs: Inputs) -> Floats:
        """Encode texts up to the head, outside of training."""
        encoding = self.encoding()
        found = []
        for start in range(0, len(inputs), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(inputs)))
            found.append(encoding.encode(inputs.take(rows)))  # type: ignore[arg-type]
        return np.concatenate(found)

    def mine(self) -> None:
        """Find the best wrong labels of each point as the network stands."""
        shortlist = self.plan.shortlist
        assert isinstance(shortlist, Pool)
        index, data = self.index(), self.points
        held = []
        for start in range(0, len(data.inputs), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(data.inputs)))
            positives = data.targets[rows]
            labels, _ = top_products(
                index.encode(data.inputs.take(rows)), index.labels, shortlist.mined, bias=index.bias
            )
            found = rows_of(labels, np.ones(labels.shape), positives.shape[1])
            found = sp.csr_array(found - found.multiply((positives + data.excluded[rows]) > 0))
            found.eliminate_zeros()
            held.append(found)
        self.mined = sp.csr_array(sp.vstack(held))

    def encoding(self) -> Encoding:
        """Give the encoder as arrays."""
        vectors = self.tables["words"].values.cpu().numpy()
        settings, vocabulary = self.plan.encoder, self.points.vocabulary
        if isinstance(vocabulary, Words):
            return BagEncoding(vocabulary, vectors, bool(getattr(settings, "relu", False)))
        layers = {name: value.cpu().numpy().copy() for name, value in self.dense.encoder.state_dict().items()}
        return OrderedEncoding(vocabulary, vectors, settings, layers)  # type: ignore[arg-type]

    @torch.no_grad()
    def index(self) -> VectorIndex:
        """Turn what was learnt into arrays that score without torch."""
        classifier, dense = self.plan.classifier, self.dense
        training = dense.training
        head = dense.head.frozen() if dense.head is not None else None
        rows = self.tables["labels"].values.cpu().numpy().copy()
        blank = np.zeros(len(rows), np.float32)
        index = VectorIndex(self.encoding(), head, rows, blank, cosine=False)
        if classifier.text and self.points.names is not None:
            for start in range(0, len(rows), CHUNK):
                some = np.arange(start, min(start + CHUNK, len(rows)))
                names = self.points.names.take(some)
                rows[some] += index.encode(names) if classifier.text == "head" else index.encoding.encode(names)  # type: ignore[arg-type]
        bias = blank
        if "bias" in self.tables:
            scale = float(dense.log_scale.exp()) if classifier.cosine else 1.0
            bias = np.asarray(self.tables["bias"].values.cpu().numpy() / scale, np.float32)
        guide = None
        if dense.meta_rows is not None and self.plan.clusters is not None and isinstance(self.plan.shortlist, Meta):
            meta_head = dense.meta_head.frozen() if dense.meta_head is not None else None
            weight, shift = (value.detach().cpu().numpy().copy() for value in dense.meta_rows.parameters())
            guide = MetaGuide(self.plan.clusters, meta_head, weight, shift, self.plan.shortlist.top)
        dense.train(training)
        vectors = unit(rows) if classifier.cosine else rows
        return VectorIndex(index.encoding, head, vectors, bias, classifier.cosine, guide)


def vector_size(encoder: Part) -> int:
    """Tell the dimension of the vectors that an encoder makes."""
    return int(getattr(encoder, "vector", getattr(encoder, "dim", 0)))


def spread(matrix: sp.csr_array, pool: NDArray[np.int64], device: torch.device) -> Tensor:
    """Lay the entries of a batch (B, L) out over its pool: (B, K); what is not in the pool is left out."""
    out = np.zeros((matrix.shape[0], len(pool)), np.float32)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    places = np.searchsorted(pool, matrix.indices)
    held = np.append(pool, -1)[places] == matrix.indices
    out[rows[held], places[held]] = matrix.data[held]
    return torch.from_numpy(out).to(device)
