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
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from longtail.errors import MissingExtra, ModelError
from longtail.files import read_arrays, write_arrays
from longtail.folder import changing, checksum, read_config, verify_files, write_config
from longtail.model import Model
from longtail.parts import LabelStore, Query
from longtail.scorers.fused import FusedScorer
from longtail.search.hnsw import BEST, HNSW
from longtail.search.ivf import IVF
from longtail.search.quantised import REMEDY, Precision, Quantised
from longtail.stores.engine import Engine
from longtail.stores.memory import MemoryStore
from longtail.types import Floats, Ints, Progress
from longtail.whole import sweep

Kind = Literal["auto", "exact", "hnsw", "ivf"]
SMALL = 3000  # labels up to which looking at all of them is quick
LARGE = 2_000_000  # labels from which a graph takes long to make and much memory
TEXTS = 1000  # training texts that recall is measured on
OWN = re.compile(r"index_[0-9a-f]+\.safetensors")
BEST_EFFORTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # that are tried


@dataclass(frozen=True)
class IndexInfo:
    """How the labels of a model are found when it is served."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    precision: Precision
    search: Kind | Engine  # exact, hnsw or ivf; or what a store does
    recall: float  # measured: how much of the five best answers of exact search in full precision is found
    wanted: float  # the recall that was asked for
    texts: int  # training texts that it was measured on
    ef_search: int = 0  # of the graph
    nprobe: int = 0  # clusters that are looked into
    file: str = ""


def build_artefact(
    path: str | Path,
    *,
    precision: Precision = "int8",
    search: Kind = "auto",
    recall: float = 0.98,
    progress: Progress | None = None,
) -> IndexInfo | None:
    """Make the index file of a model folder; None where a model has no label vectors, or finds candidates itself."""
    folder = Path(path)
    config = read_config(folder)
    own = {name for name in config["files"] if OWN.fullmatch(name)}  # is built anew
    verify_files(folder, {name: value for name, value in config["files"].items() if name not in own})
    model = Model.opened(folder, config)
    if model.vectors is None or not model.vectors.searchable:
        return None
    store = model.vectors.store
    vectors = store.take(slice(None))
    leader = _leader(vectors, store.bias, search, progress)
    info, arrays = _choose(Trial(model), precision, leader, recall, or_exact=search == "auto")
    info = replace(info, file=f"index_{secrets.token_hex(6)}.safetensors")
    with changing(folder) as now:
        if now != config:
            raise ModelError(f"{folder}: the model or its index was replaced meanwhile; run it again")
        sweep(folder)
        write_arrays(folder / info.file, arrays)
        files = {name: value for name, value in config["files"].items() if not OWN.fullmatch(name)}
        files[info.file] = checksum(folder / info.file)
        write_config(folder, {**config, "files": files, "index": asdict(info)})
        for other in folder.iterdir():
            if OWN.fullmatch(other.name) and other.name != info.file:
                other.unlink()  # of an earlier index, or of a run that was killed
    return info


class Trial:
    """Some training texts, and what they are answered by looking at all labels in full precision."""

    def __init__(self, model: Model) -> None:
        texts = model.examples.texts if model.examples is not None else model.labels.texts
        if texts is None or model.vectors is None:
            raise ModelError("the model holds no texts to measure recall on; train it again with this version")
        self.scorer, self.vectors = model.scorer, model.vectors
        self.texts = texts.take(np.sort(np.random.default_rng(0).permutation(len(texts))[:TEXTS])).tolist()
        self.exact = self._answers(self.scorer)

    def _answers(self, scorer: FusedScorer) -> Ints:
        """Answer as it is served: with words, where the model has them."""
        return scorer.top(Query(self.texts), BEST).labels

    def recall(self, store: LabelStore) -> float:
        """Return how much of the exact answers a store finds."""
        served = self._answers(replace(self.scorer, vectors=self.vectors.with_store(store)))
        pairs = zip(served.tolist(), self.exact.tolist(), strict=True)
        return sum(len({*some} & {*truth} - {-1}) for some, truth in pairs) / max(1, int((self.exact >= 0).sum()))


def _choose(
    trial: Trial, precision: Precision, leader: HNSW | IVF | None, recall: float, *, or_exact: bool
) -> tuple[IndexInfo, dict[str, Any]]:
    """Choose how far to look for the recall, or to look at all labels where it is out of reach; name the arrays."""
    store = trial.vectors.store
    bias, vectors = store.bias, store.take(slice(None))
    count = len(trial.texts)
    if leader is not None:
        graph = leader if isinstance(leader, HNSW) else None
        same = graph is not None and precision == "int8" and graph.plain(vectors.shape[1])
        rows = graph.stored if same and graph is not None else Quantised.of(vectors, precision)
        for effort in BEST_EFFORTS if graph is not None else _powers(leader):
            leader = leader.searching(effort)
            value = trial.recall(MemoryStore(rows, bias, leader))
            if value >= recall:
                break
        if value >= recall or not or_exact:
            arrays = leader.arrays() | ({} if same or precision == "fp32" else rows.arrays())
            kind: Kind = "ivf" if graph is None else "hnsw"
            ef_search, nprobe = (0, effort) if graph is None else (effort, 0)
            return IndexInfo(precision, kind, round(value, 4), recall, count, ef_search, nprobe), arrays
    rows = Quantised.of(vectors, precision)
    value = trial.recall(MemoryStore(rows, bias))
    return IndexInfo(precision, "exact", round(value, 4), recall, count), {} if precision == "fp32" else rows.arrays()


def _leader(vectors: Floats, bias: Floats, kind: Kind, progress: Progress | None) -> HNSW | IVF | None:
    """Build what leads to most of the best labels: a graph; clusters for very many labels, or without faiss."""
    count = len(vectors)
    if kind == "exact" or (kind == "auto" and count <= SMALL):
        return None
    if kind == "hnsw" or (kind == "auto" and count <= LARGE):
        try:
            return HNSW.build(vectors, bias, progress=progress)
        except MissingExtra:
            if kind == "hnsw":
                raise
    return IVF.build(vectors, progress=progress)


def _powers(ivf: HNSW | IVF) -> tuple[int, ...]:
    """Count clusters to look into, up to a quarter of all: to look at all labels is as quick then."""
    clusters = len(ivf.clusters) if isinstance(ivf, IVF) else 1
    return tuple(2**power for power in range(max(1, (clusters // 4).bit_length())))


def _info(folder: Path, config: Mapping[str, Any]) -> IndexInfo:
    """Read what config.json says of the index file."""
    info = info_of(folder, config["index"])
    if info.file not in config["files"]:
        raise ModelError(f"{folder}: config.json does not list the file {info.file!r} of its index; {REMEDY}")
    return info


def info_of(folder: Path, facts: Any) -> IndexInfo:
    """Read the facts of an index."""
    try:
        info: IndexInfo = TypeAdapter(IndexInfo).validate_python(facts)
    except ValidationError as reason:
        what = reason.errors()[0]
        raise ModelError(f"{folder}: the index is damaged ({what['loc']}: {what['msg']}); {REMEDY}") from None
    return info


def open_artefact(folder: Path, model: Model, config: Mapping[str, Any]) -> tuple[Any, IndexInfo | None]:
    """Open the vectors of a model as its index file says; without one they are searched as they were trained."""
    scorer = model.vectors
    if scorer is None or "index" not in config or not scorer.searchable:
        return scorer, None
    labels, width = len(scorer), scorer.store.dim
    info = _info(folder, config)
    arrays = read_arrays(folder / info.file)
    graph, ivf = HNSW.of_arrays(arrays, labels, width), IVF.of_arrays(arrays, labels, width)
    if "rows" in arrays:
        rows = Quantised.of_arrays(arrays, labels, width)
    elif graph is not None and info.precision == "int8" and graph.plain(width):
        rows = graph.stored
    else:
        rows = Quantised(scorer.store.take(slice(None)))
    return scorer.with_store(MemoryStore(rows, scorer.store.bias, graph or ivf)), info
