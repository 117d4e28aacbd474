"""MODEL FOLDER → INDEX FILE: label vectors of few bytes, and a graph or clusters to search them, by measured recall.

The file is written under a name of its own and becomes part of the folder when config.json, which lists it with its
checksum, is replaced: a crash leaves the folder as it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longtail.errors import MissingExtra, ModelError
from longtail.files import read_arrays, write_arrays
from longtail.model import Model, checksum, read_config, verify_files, write_config
from longtail.shortlists.blend import Scores, answers
from longtail.shortlists.hnsw import BEST, Graph
from longtail.shortlists.lists import Lists
from longtail.shortlists.search import Search
from longtail.shortlists.stored import Precision, Stored
from longtail.shortlists.vectors import VectorIndex
from longtail.types import Ints, Progress

Kind = Literal["auto", "exact", "hnsw", "ivf"]
SMALL = 3000  # labels up to which looking at all of them is quick
LARGE = 2_000_000  # labels from which a graph takes long to make and much memory
TEXTS = 1000  # training texts that recall is measured on
OWN = re.compile(r"index_[0-9a-f]+\.safetensors")
REACHES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Served:
    """How the labels of a model are found when it is served."""

    precision: Precision
    search: Kind  # exact, hnsw or ivf
    recall: float  # measured: how much of the five best answers of exact search in full precision is found
    asked: float  # the recall that was asked for
    texts: int  # training texts that it was measured on
    reach: int = 0  # of the graph, or clusters that are looked into
    file: str = ""


def build_artefact(
    path: str | Path,
    *,
    precision: Precision = "int8",
    search: Kind = "auto",
    recall: float = 0.98,
    progress: Progress | None = None,
) -> Served | None:
    """Make the index file of a model folder; None where a model has no label vectors, or finds candidates itself."""
    folder = Path(path)
    config = read_config(folder)
    own = {name for name in config["files"] if OWN.fullmatch(name)}  # is made anew
    verify_files(folder, {name: value for name, value in config["files"].items() if name not in own})
    model = Model.load(folder, verify=False)
    if model.vectors is None or model.vectors.guide is not None:
        return None
    near = _leading(model.vectors, search, progress)
    made, arrays = _chosen(_Asked(model, model.vectors), precision, near, recall, or_exact=search == "auto")
    made = replace(made, file=f"index_{secrets.token_hex(6)}.safetensors")
    write_arrays(folder / made.file, arrays)
    files = {name: value for name, value in config["files"].items() if name not in own}
    files[made.file] = checksum(folder / made.file)
    write_config(folder, {**config, "files": files, "index": asdict(made)})
    for other in folder.iterdir():
        if OWN.fullmatch(other.name) and other.name != made.file:
            other.unlink()  # of an earlier index, or of a run that was killed
    return made


class _Asked:
    """Some training texts, and what they are answered by looking at all labels in full precision."""

    def __init__(self, model: Model, vectors: VectorIndex) -> None:
        held = model.examples.texts if model.examples is not None else model.labels.texts
        if held is None:
            raise ModelError("the model holds no texts to measure recall on; train it again with this version")
        self.model, self.vectors = model, vectors
        self.texts = held.take(np.sort(np.random.default_rng(0).permutation(len(held))[:TEXTS])).tolist()
        self.exact = self._answers(vectors)

    def _answers(self, vectors: Scores) -> Ints:
        """Answer as it is served: with words, where the model has them."""
        return answers(vectors, self.model.lexical, self.model.recipe.blend, self.texts, BEST).labels

    def recall(self, stored: Stored, near: Graph | Lists | None) -> float:
        """Tell how much of the exact answers a search finds."""
        found = self._answers(Search(self.vectors, stored, near))
        pairs = zip(found.tolist(), self.exact.tolist(), strict=True)
        return sum(len({*some} & {*truth} - {-1}) for some, truth in pairs) / max(1, int((self.exact >= 0).sum()))


def _chosen(
    asked: _Asked, precision: Precision, near: Graph | Lists | None, recall: float, *, or_exact: bool
) -> tuple[Served, dict[str, Any]]:
    """Choose how far to look for the recall, or to look at all labels where it is out of reach; name the arrays."""
    labels = asked.vectors.labels
    if near is not None:
        same = isinstance(near, Graph) and precision == "int8" and near.plain(labels.shape[1])
        stored = near.stored if same and isinstance(near, Graph) else Stored.of(labels, precision)
        for reach in REACHES if isinstance(near, Graph) else _halves(len(near.clusters)):
            near = near.reaching(reach)
            found = asked.recall(stored, near)
            if found >= recall:
                break
        if found >= recall or not or_exact:
            arrays = near.arrays() | ({} if same or precision == "fp32" else stored.arrays())
            way: Kind = "hnsw" if isinstance(near, Graph) else "ivf"
            return Served(precision, way, round(found, 4), recall, len(asked.texts), near.reach), arrays
    stored = Stored.of(labels, precision)
    arrays = {} if precision == "fp32" else stored.arrays()
    return Served(precision, "exact", round(asked.recall(stored, None), 4), recall, len(asked.texts)), arrays


def _leading(vectors: VectorIndex, kind: Kind, progress: Progress | None) -> Graph | Lists | None:
    """Build what leads to most of the best labels: a graph; clusters for very many labels, or without faiss."""
    count = len(vectors.labels)
    if kind == "exact" or (kind == "auto" and count <= SMALL):
        return None
    if kind == "hnsw" or (kind == "auto" and count <= LARGE):
        try:
            return Graph.build(vectors.labels, vectors.bias, progress=progress)
        except MissingExtra:
            if kind == "hnsw":
                raise
    return Lists.build(vectors.labels, progress=progress)


def _halves(clusters: int) -> tuple[int, ...]:
    """Count clusters to look into, up to a quarter of all: to look at all labels is as quick then."""
    return tuple(2**power for power in range(max(1, (clusters // 4).bit_length())))


def open_artefact(folder: Path, model: Model, config: Mapping[str, Any]) -> tuple[Search | None, Served | None]:
    """Open the vectors of a model as its index file says; without one they are searched as they were trained."""
    vectors = model.vectors
    if vectors is None:
        return None, None
    plain = Stored(vectors.labels)
    if "index" not in config or vectors.guide is not None:
        return Search(vectors, plain), None
    try:
        served = Served(**config["index"])
        if served.file not in config["files"]:
            raise ModelError(f"{folder / served.file}: config.json does not list it; make the index again")
        held = read_arrays(folder / served.file)
        graph, lists = Graph.of_arrays(held), Lists.of_arrays(held)
        stored = (
            Stored.of_arrays(held)
            if "rows" in held
            else graph.stored
            if graph and served.precision == "int8"
            else plain
        )
    except (KeyError, TypeError, ValueError) as reason:
        raise ModelError(f"{folder}: the index is damaged ({reason}); make it again: longtail index") from None
    wide = {stored.rows.shape[1], vectors.labels.shape[1]}
    tall = {len(stored), len(vectors.labels)} | ({len(graph.stored)} if graph else set())
    if lists:
        wide, tall = wide | {lists.middles.shape[1]}, tall | {len(lists.clusters.of)}
    if len(wide) > 1 or len(tall) > 1 or (graph and graph.stored.rows.shape[1] - wide.pop() not in (0, 2)):
        raise ModelError(f"{folder}: the index does not fit the model; make it again: longtail index")
    return Search(vectors, stored, graph or lists), served
