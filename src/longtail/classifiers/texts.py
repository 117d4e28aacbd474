"""LABEL TEXTS → LABEL VECTORS: from the words of a label, from those of its neighbours, and combined.

z_l = Σ_t x_lt E_t with the word vectors E that points have too. `label_text` is R(z_l); `graph_text` is R(Σ_m A_lm z_m)
with A the normalised random walk over labels; `combined` adds them and free rows up, with gates or with attention. A
step computes the vectors of its own labels only, from their texts and those of their neighbours. Clusters of labels
have the sum of their labels' texts, and a graph of their own.

References: [DECAF], [ECLARE], [InceptionXML-LF]; methods §5.3, §5.5, §5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from longtail.classifiers.products import BuiltProducts, Products, all_texts
from longtail.errors import DataError, RecipeError
from longtail.labels.walk import normalised, random_walk
from longtail.parts import (
    BuiltHead,
    Classifier,
    FrozenHead,
    FrozenTower,
    Head,
    Names,
    Network,
    Points,
    States,
    Step,
    TextsAs,
)
from longtail.records import Cost, Sizes, named, record
from longtail.scorers.texts import TextRows, open_combine
from longtail.scorers.vectors import Projection, VectorScorer
from longtail.search.exact import unit
from longtail.types import Floats

if TYPE_CHECKING:
    from torch import Tensor

CANDIDATES = 64  # labels for each point of a batch at most, for the estimate
FLOPS = 4e10  # operations a second that a layer reaches on a few cores


@record
class LabelText(Products):
    """A label is what `transform` makes of the sum of its word vectors, or of what the encoder makes of its text.

    References: [DECAF] (words), [SiameseXML] (the encoder).
    """

    part: ClassVar[str] = "label_text"
    texts: TextsAs = "words"  # how label texts are encoded: as sums of words, by the tower, or through the head
    cosine: bool = False  # whether scores are cosines
    # the layer between label texts and label vectors
    transform: Head | None = Field(default_factory=lambda: named("gated"))

    def check(self, recipe: Any) -> None:
        """Ask for an encoder with word vectors."""
        if self.texts == "words":
            need_words(recipe, self)
        super().check(recipe)

    def in_width(self, encoder: Any) -> int | None:
        """Return the dimension of word vectors, or of the encoder, unless texts pass the head as points do."""
        return {"words": int(encoder.dim), "tower": int(encoder.width)}.get(self.texts)

    def cost(self, sizes: Sizes) -> Cost:
        """Count label vectors to serve and to save, their sums, the bags of label texts, and a layer in each step."""
        table, batch = 4.0 * sizes.labels * sizes.width, max(sizes.batch_size, 1)
        scored = min(sizes.labels, CANDIDATES * batch)
        steps = sizes.passes * sizes.points / batch
        memory = 3 * table + 12.0 * sizes.words * sizes.labels + 8 * 4.0 * scored * sizes.width
        return Cost(memory, table, steps * scored * 6.0 * sizes.width**2 / FLOPS)

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltText:
        """Make the half that is trained."""
        return BuiltText(self, points, width, network)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> VectorScorer:
        """Put the label vectors of a model file together."""
        transform = None if self.transform is None else self.transform.open(arrays, "texts.head0", width)
        project, rows = Projection(head, self.served_cosine), TextRows((transform,)) if self.texts == "words" else None
        through = self.texts == "head"
        return VectorScorer.of_arrays(arrays, tower, project, width, texts_through_head=through, text_rows=rows)


class BuiltText(BuiltProducts):
    """Vectors of label texts while they are trained."""

    settings: LabelText

    def __init__(self, settings: LabelText, points: Points, width: int, network: Network) -> None:
        super().__init__(settings, points, network)
        need_label_texts(network)
        if settings.texts != "words":
            need_every_text(network)
        self.transform: Any = None if settings.transform is None else settings.transform.build(width, network)
        transform: Any = self.transform
        self.module.add_module("transform", transform)

    @property
    def texts_as(self) -> TextsAs:
        """How label texts are encoded."""
        return self.settings.texts

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ask for the texts of the labels."""
        return labels

    def vectors(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Transform the sums of word vectors."""
        assert texts is not None, "need_label_texts has seen them"
        return texts.pooled if self.transform is None else self.transform(texts.pooled, step)

    def served(self, sums: Floats) -> Floats:
        """Return what passes the transform as it is served, of the sums (L, D) of all label texts."""
        return sums

    def all_vectors(self, names: Names | None) -> Floats:
        """Transform the sums of all label texts."""
        assert names is not None, "need_label_texts has seen them"
        return self.transformed()(self.served(all_texts(names)))

    def transformed(self) -> TextRows:
        """Return the transform as it is served."""
        return TextRows((None if self.transform is None else self.transform.freeze(),))

    def text_rows(self) -> TextRows | None:
        """Return the transform, where it makes vectors of new labels from their words."""
        return self.transformed() if self.settings.texts == "words" else None


@record
class GraphText(LabelText):
    """A label is what `transform` makes of its neighbours' sums of word vectors. References: [ECLARE]."""

    part: ClassVar[str] = "graph_text"
    mixes_labels: ClassVar[bool] = True

    def cost(self, sizes: Sizes) -> Cost:
        """Count the graph too: at most eleven neighbours of each label."""
        return super().cost(sizes) + Cost(memory=2 * 12.0 * 11 * sizes.labels)

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltGraphText:
        """Walk over the labels."""
        return BuiltGraphText(self, points, width, network)


class BuiltGraphText(BuiltText):
    """Vectors of the texts of neighbours while they are trained."""

    def __init__(self, settings: GraphText, points: Points, width: int, network: Network) -> None:
        super().__init__(settings, points, width, network)
        self.graph = label_graph(points, network)

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ask for the texts of all neighbours; each label is its own."""
        return np.unique(self.graph[labels].indices).astype(np.int64)

    def vectors(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Mix the sums of neighbours and transform them."""
        import torch  # noqa: PLC0415
        from torch.nn import functional  # noqa: PLC0415

        assert texts is not None, "need_label_texts has seen them"
        edges, device = self.graph[labels], texts.pooled.device
        places = np.unique(edges.indices, return_inverse=True)[1]
        mixed = functional.embedding_bag(
            torch.from_numpy(places).to(device), texts.pooled,
            torch.from_numpy(edges.indptr[:-1].astype(np.int64)).to(device),
            mode="sum", per_sample_weights=torch.from_numpy(edges.data).to(device),
        )  # fmt: skip
        return super().vectors(labels, States(mixed), step)

    def served(self, sums: Floats) -> Floats:
        """Mix the sums of neighbours."""
        return np.asarray(self.graph @ sums, np.float32)


@record
class Combined(Products):
    """Several vectors for each label, added up.

    "gates": each dimension of each part has a gate, the sigmoid of a learnt number, which starts at one half.
    "attention": each label decides how much each part counts. A part's own bias and cosine do not matter.
    """

    part: ClassVar[str] = "combined"
    cosine: bool = False  # whether scores are cosines
    of: tuple[Classifier, ...] = ()  # the parts that are added up
    by: Literal["gates", "attention"] = "gates"  # how the parts are weighed
    attention_dropout: float = Field(default=0.2, ge=0, lt=1)  # of the weights of the parts

    @property
    def mixes_labels(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(part.mixes_labels for part in self.of)

    def check(self, recipe: Any) -> None:
        """Ask for parts that make vectors of the dimension of words."""
        need_words(recipe, self)
        if not self.of or not all(isinstance(part, Products) for part in self.of):
            raise RecipeError(f"{recipe.name}: combined needs parts that make label vectors, such as label_text, rows")
        if len({part.part for part in self.of}) < len(self.of):
            raise RecipeError(f"{recipe.name}: combined takes one part of each kind")
        if any(part.fields().get("text") or part.fields().get("texts", "words") != "words" for part in self.of):
            raise RecipeError(f"{recipe.name}: parts that are combined take texts as words; rows have none: text=none")
        super().check(recipe)

    def in_width(self, encoder: Any) -> int:
        """Return the dimension of word vectors."""
        return int(encoder.dim)

    def cost(self, sizes: Sizes) -> Cost:
        """Take back what its parts count for saving: one vector of each label is saved."""
        return Cost(disk=-4.0 * (len(self.of) - 1) * sizes.labels * sizes.width)

    def build(self, points: Points, width: int, network: Network, head: BuiltHead | None = None) -> BuiltCombined:
        """Make the parts."""
        return BuiltCombined(self, points, width, network)

    def open(
        self, arrays: Mapping[str, NDArray[Any]], tower: FrozenTower, head: FrozenHead | None, width: int
    ) -> VectorScorer:
        """Put the label vectors of a model file together."""
        transforms = [part.fields().get("transform") for part in self.of]
        heads = tuple(t and t.open(arrays, f"texts.head{k}", width) for k, t in enumerate(transforms))
        rows = TextRows(heads, open_combine(arrays, self.by, len(heads), width))
        return VectorScorer.of_arrays(arrays, tower, Projection(head, self.served_cosine), width, text_rows=rows)


class BuiltCombined(BuiltProducts):
    """Several vectors for each label while they are trained."""

    settings: Combined

    def __init__(self, settings: Combined, points: Points, width: int, network: Network) -> None:
        super().__init__(settings, points, network)
        from longtail.classifiers.combine import Attention, Gates  # noqa: PLC0415  (torch)

        need_label_texts(network)
        self.parts: list[Any] = [part.build(points, width, network) for part in settings.of]
        count = len(self.parts)
        combine = Gates(count, width) if settings.by == "gates" else Attention(count, width, settings.attention_dropout)
        self.combine: Any = combine
        self.module.combine = combine
        for part, built in zip(settings.of, self.parts, strict=True):
            self.module.add_module(part.part, built.module)
            self.tables |= {name: table for name, table in built.tables.items() if name != "bias"}

    def texts(self, labels: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Ask for the texts that any part needs, each once."""
        wanted = [part.texts(labels) for part in self.parts]
        wanted = [each for each in wanted if each is not None]
        return np.unique(np.concatenate(wanted)) if wanted else None

    def vectors(self, labels: NDArray[np.int64], texts: States | None, step: Step) -> Tensor:
        """Combine what the parts make."""
        import torch  # noqa: PLC0415

        everything, vectors = self.texts(labels), []
        for part in self.parts:
            own, wanted = None, part.texts(labels)
            if wanted is not None and texts is not None and everything is not None:
                places = torch.from_numpy(np.searchsorted(everything, wanted)).to(texts.pooled.device)
                own = States(texts.pooled if len(wanted) == len(everything) else texts.pooled[places])
            vectors.append(part.vectors(labels, own, step))
        combined: Tensor = self.combine(vectors, step)
        return combined

    def all_vectors(self, names: Names | None) -> Floats:
        """Combine the parts of all labels."""
        assert names is not None, "need_label_texts has seen them"
        sums = all_texts(names)
        parts = [part.served(sums) if isinstance(part, BuiltText) else part.all_vectors(None) for part in self.parts]
        return self.text_rows()(*parts)

    def text_rows(self) -> TextRows:
        """Return the transforms and the combination as they are served."""
        heads = tuple(part.transformed().heads[0] if isinstance(part, BuiltText) else None for part in self.parts)
        return TextRows(heads, self.combine.freeze())


def label_vectors(points: Points, network: Network, *, walked: bool) -> Floats:
    """Return what the encoder makes of all label texts, or mix it with their neighbours: (L, D), before any head."""
    need_label_texts(network)
    if points.partition is not None:
        raise RecipeError(f"{network.fit.recipe.name}: clusters have no texts to encode; start from label_text")
    vectors = unit(network.vectors(network.points.names))  # type: ignore[arg-type]
    return np.asarray(label_graph(points, network) @ vectors, np.float32) if walked else vectors


def label_sums(points: Points, network: Network, *, walked: bool = False) -> Floats:
    """Sum the word vectors of all labels, or clusters, and mix them with their neighbours: (L, D)."""
    need_label_texts(network)
    words: Floats = network.tower.tables["words"].values.cpu().numpy()
    bags = network.tower.bags(network.points.names, points.partition).bags(len(words))
    sums = np.asarray(bags @ words, np.float32)
    return np.asarray(label_graph(points, network) @ sums, np.float32) if walked else sums


def label_graph(points: Points, network: Network) -> sp.csr_array:
    """Walk over the labels, or clusters, of the original points; the graph is normalised."""
    fit = network.fit
    if points.partition is None and fit.graph is not None:
        return normalised(fit.graph)
    targets = fit.train.original.targets
    if points.partition is not None:
        targets = points.partition.targets(targets)
    return normalised(random_walk(targets, seed=fit.seed))


def need_label_texts(network: Network) -> None:
    """Refuse data without label texts."""
    if network.points.names is None:
        raise DataError(
            f"the labels of this data set have no texts, and {network.fit.recipe.name} makes label vectors from them",
            remedy="add a label file (lbl.jsonl, Y.txt …), or train astec or frugal, which need no label texts",
        )


def need_every_text(network: Network) -> None:
    """Refuse labels without a text, which an encoder of texts could never find."""
    texts = network.fit.train.labels.texts or ()
    empty = sum(not text.strip() for text in texts)
    if empty:
        raise DataError(
            f"{empty:,} of {len(texts):,} labels have no text, by which {network.fit.recipe.name} knows them",
            remedy="give them texts, or train a recipe with a row for each label, such as frugal, astec or decaf",
        )


def need_words(recipe: Any, part: Classifier) -> None:
    """Refuse an encoder without word vectors."""
    if not recipe.encoder.has_words:
        raise RecipeError(f"{recipe.name}: {part.part} needs an encoder with word vectors: --set encoder=bag")
