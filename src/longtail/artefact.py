"""MODEL FOLDER → INDEX FILE: label vectors of few bytes and a graph to search them, chosen by measured recall.

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
from longtail.model import Model, checksum, read_config, write_config
from longtail.shortlists.exact import top_products
from longtail.shortlists.hnsw import Graph
from longtail.shortlists.search import Search, measured_recall
from longtail.shortlists.stored import Precision, Stored
from longtail.types import Floats, Ints

Kind = Literal["auto", "exact", "hnsw"]
SMALL = 3000  # labels up to which looking at all of them is quick
TEXTS, BEST = 1000, 5  # training texts that recall is measured on, and labels of each
OWN = re.compile(r"index_[0-9a-f]+\.safetensors")
REACHES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass(frozen=True)
class Served:
    """How the labels of a model are found when it is served."""

    precision: Precision
    search: Kind  # exact or hnsw
    recall: float  # measured: how much of the five best by exact search in full precision is found
    asked: float  # the recall that was asked for
    texts: int  # training texts that it was measured on
    reach: int = 0  # of the graph
    file: str = ""


def build_artefact(
    path: str | Path, *, precision: Precision = "int8", search: Kind = "auto", recall: float = 0.98
) -> Served | None:
    """Make the index file of a model folder; None where a model has no label vectors, or finds candidates itself."""
    folder = Path(path)
    model = Model.load(folder)
    if model.vectors is None or model.vectors.guide is not None:
        return None
    queries, exact = _truth(model)
    made, arrays = _chosen(model, precision, search, recall, queries, exact)
    config = read_config(folder)
    made = replace(made, file=f"index_{secrets.token_hex(6)}.safetensors")
    write_arrays(folder / made.file, arrays)
    files = {name: value for name, value in config["files"].items() if not OWN.fullmatch(name)}
    files[made.file] = checksum(folder / made.file)
    write_config(folder, {**config, "files": files, "index": asdict(made)})
    for other in folder.iterdir():
        if OWN.fullmatch(other.name) and other.name != made.file:
            other.unlink()  # of an earlier index, or of a run that was killed
    return made


def _truth(model: Model) -> tuple[Floats, Ints]:
    """Encode some training texts, and find their best labels by looking at all in full precision."""
    held = model.examples.texts if model.examples is not None else model.labels.texts
    if model.vectors is None or held is None:
        raise ModelError("the model holds no texts to measure recall on; train it again with this version")
    rows = np.random.default_rng(0).permutation(len(held))[:TEXTS]
    queries = model.vectors.encode(model.vectors.encoding.inputs(held.take(np.sort(rows)).tolist()))
    return queries, top_products(queries, model.vectors.labels, BEST, bias=model.vectors.bias)[0]


def _chosen(
    model: Model, precision: Precision, kind: Kind, asked: float, queries: Floats, exact: Ints
) -> tuple[Served, dict[str, Any]]:
    """Choose the way to search that reaches the recall, and name its arrays."""
    vectors = model.vectors
    if vectors is None:
        raise ModelError("the model has no label vectors")
    stored = Stored.of(vectors.labels, precision)
    arrays = {} if precision == "fp32" else stored.arrays()
    if kind == "hnsw" or (kind == "auto" and len(stored) > SMALL):
        try:
            graph = Graph.build(vectors.labels, vectors.bias)
        except MissingExtra:
            if kind == "hnsw":
                raise
        else:
            shared = precision == "int8" and graph.plain(vectors.labels.shape[1])
            labels = graph.stored if shared else stored
            for reach in REACHES:
                graph = graph.reaching(reach)
                found = measured_recall(Search(vectors, labels, graph), queries, exact)
                if found >= asked:
                    break
            if found >= asked or kind == "hnsw":
                served = Served(precision, "hnsw", round(found, 4), asked, len(queries), graph.reach)
                return served, graph.arrays() | ({} if shared else arrays)
    best = Search(vectors, stored).exact(queries, exact.shape[1])[0]
    same = sum(len(set(a) & set(b)) for a, b in zip(best.tolist(), exact.tolist(), strict=True))
    return Served(precision, "exact", round(same / max(1, exact.size), 4), asked, len(queries)), arrays


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
        graph = Graph.of_arrays(held)
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
    if len(wide) > 1 or len(tall) > 1 or (graph and graph.stored.rows.shape[1] - wide.pop() not in (0, 2)):
        raise ModelError(f"{folder}: the index does not fit the model; make it again: longtail index")
    return Search(vectors, stored, graph), served
