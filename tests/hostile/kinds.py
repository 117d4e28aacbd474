"""A good model folder → hostile ones: every array and every setting changed in every way, with checksums that fit.

As a program it tries changes one after the other and says how each ended; a parent restarts it where it died.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from longtail.errors import LongtailError
from longtail.files import read_arrays, read_texts
from longtail.folder import checksum, read_config, write_config
from longtail.index import Index
from longtail.machine import memory_usage
from longtail.types import TopK

QUERIES = ["word3 filler1", "", "unseen words only", "word7 word4 name2"]
ALLOWED = 300 * 2**20  # bytes above a good model


def _at(array: np.ndarray, place: int, value: float) -> np.ndarray:
    """Change one entry."""
    changed = np.array(array).ravel()
    changed[place] = value
    return changed.reshape(array.shape)


def _wrapped(array: np.ndarray) -> np.ndarray:
    """Let neighbours differ by so much that their differences wrap around."""
    changed = np.array(array)
    if len(changed) > 3:
        changed[1], changed[2] = np.iinfo(array.dtype).max, np.iinfo(array.dtype).min
    return changed


def _number(array: np.ndarray, which: str) -> float:
    """Return the largest or smallest number of a type."""
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
    return getattr(limits, which)


ANY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as float64": lambda a: a.astype("f8"),
    "as float16": lambda a: a.astype("f2"),
    "as float32": lambda a: a.astype("f4"),
    "as int8": lambda a: a.astype("i1"),
    "as int16": lambda a: a.astype("i2"),
    "as int32": lambda a: a.astype("i4"),
    "as int64": lambda a: a.astype("i8"),
    "as bytes": lambda a: a.astype("u1"),
    "one shorter": lambda a: a[:-1],
    "one longer": lambda a: np.concatenate([a, a[-1:]]),
    "twice": lambda a: np.concatenate([a, a]),
    "empty": lambda a: a[:0],
    "one more dimension": lambda a: a[None],
    "a column": lambda a: a[..., None],
    "no dimension": lambda a: a.ravel()[0],
    "flat": lambda a: a.ravel(),
    "turned": lambda a: np.ascontiguousarray(a.T),
    "backwards": lambda a: np.ascontiguousarray(a[::-1]),
    "many of nothing": lambda a: np.zeros((2**40, 0), a.dtype),
    "zeros": np.zeros_like,
    "first negative": lambda a: _at(a, 0, -1) if a.dtype.kind != "u" else a,
    "last negative": lambda a: _at(a, -1, -1) if a.dtype.kind != "u" else a,
    "first largest": lambda a: _at(a, 0, _number(a, "max")),
    "last largest": lambda a: _at(a, -1, _number(a, "max")),
    "first smallest": lambda a: _at(a, 0, _number(a, "min")),
    "middle largest": lambda a: _at(a, a.size // 2, _number(a, "max")),
    "all largest": lambda a: np.full_like(a, _number(a, "max")),
    "all smallest": lambda a: np.full_like(a, _number(a, "min")),
}
FLOATS = {
    "first NaN": lambda a: _at(a, 0, np.nan),
    "last NaN": lambda a: _at(a, -1, np.nan),
    "infinite": lambda a: _at(a, a.size // 2, np.inf),
    "minus infinite": lambda a: _at(a, 0, -np.inf),
}
INTS = {
    "wrapped": _wrapped,
    "one more": lambda a: a + a.dtype.type(1),
    "31": lambda a: np.full_like(a, 31),
    "1": np.ones_like,
    "1024": lambda a: np.full_like(a, 1024) if a.dtype.itemsize > 1 else a,
    "shuffled": lambda a: np.random.default_rng(0).permutation(a),
}
VALUES = {
    "negative": -1, "nothing": None, "text": "many", "huge": 10**30, "zero": 0, "fraction": 0.5, "NaN": float("nan"),
    "list": [1], "object": {"a": 1}, "infinite": float("inf"), "NUL": "a\0b", "surrogate": "\ud800", "true": True,
    "outside": "../outside", "large": 10**9,
}  # fmt: skip


@dataclass(frozen=True)
class Attack:
    """One hostile change of a model folder."""

    kind: str  # what is done
    place: str  # where
    make: Callable[[Path], None]


def attacks(folder: Path) -> list[Attack]:
    """List every attack on a folder, always in the same order."""
    config = read_config(folder)
    names = sorted(config["files"])
    found = [attack for name in names if name.endswith(".safetensors") for attack in _arrays(name, folder / name)]
    found += [attack for name in names if name.endswith(".arrow") for attack in _texts(name)]
    found += [*_labels(), *_settings(config)]
    found += [attack for name in names if name.endswith(".json") for attack in _json(folder, name)]
    return found


def _arrays(name: str, path: Path) -> Iterator[Attack]:
    """Change each array of a file in every way that its type allows."""
    for key, array in read_arrays(path).items():
        kinds = ANY | (FLOATS if array.dtype.kind == "f" else INTS)
        if array.size == 0:
            kinds = {kind: ANY[kind] for kind in ("one more dimension", "many of nothing", "as float64", "as int64")}
        for kind, change in kinds.items():
            yield Attack(f"array {kind}", f"{name}:{key}", _changed_array(name, key, change))
        yield Attack("array missing", f"{name}:{key}", _changed_array(name, key, None))


def _changed_array(name: str, key: str, change: Callable[[Any], Any] | None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        arrays = {own: np.array(array) for own, array in read_arrays(folder / name).items()}
        array = arrays.pop(key)
        if change is not None:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                arrays[key] = np.asarray(change(array), order="C")
        save_file(arrays, folder / name)

    return make


def _texts(name: str) -> Iterator[Attack]:
    """Change the texts of an Arrow file."""

    def written(change: Callable[[list[str]], pa.Table]) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            table = change(read_texts(folder / name)["text"].tolist())
            with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        return make

    def column(values: list[Any], kind: Any = None) -> pa.Table:
        return pa.table({"text": pa.array(values, kind or pa.large_string())})

    changes: dict[str, Callable[[list[str]], pa.Table]] = {
        "shorter": lambda texts: column(texts[:-1]),
        "longer": lambda texts: column([*texts, "more"]),
        "none": lambda texts: column([]),
        "nulls": lambda texts: column([None, *texts[1:]]),
        "equal": lambda texts: column(["word3"] * len(texts)),
        "with NUL": lambda texts: column(["a\0b", *texts[1:]]),
        "numbers": lambda texts: column(list(range(len(texts))), pa.int64()),
        "bytes": lambda texts: column([b"\xff\xfe"] * len(texts), pa.large_binary()),
        "of another name": lambda texts: pa.table({"words": pa.array(texts)}),
        "views": lambda texts: column(texts, pa.string_view()),
        "dictionary": lambda texts: column(texts).set_column(0, "text", column(texts)["text"].dictionary_encode()),
    }
    for kind, change in changes.items():
        yield Attack(f"texts {kind}", name, written(change))


def _labels() -> Iterator[Attack]:
    """Change labels.parquet."""

    def written(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            table = pq.ParquetFile(folder / "labels.parquet").read()
            pq.write_table(change(table), folder / "labels.parquet")

        return make

    def counts(values: Callable[[int], Any]) -> Callable[[pa.Table], pa.Table]:
        return lambda table: table.set_column(0, "frequency", values(len(table)))

    changes: dict[str, Callable[[pa.Table], pa.Table]] = {
        "shorter": lambda table: table.slice(0, len(table) - 1),
        "none": lambda table: table.slice(0, 0),
        "twice": lambda table: pa.concat_tables([table, table]),
        "without frequencies": lambda table: table.drop_columns(["frequency"]),
        "without texts": lambda table: table.drop_columns(["text"]),
        "frequencies negative": counts(lambda n: pa.array([-1] * n)),
        "frequencies huge": counts(lambda n: pa.array([2**62] * n)),
        "frequencies null": counts(lambda n: pa.array([None] * n, pa.int64())),
        "frequencies fractions": counts(lambda n: pa.array([0.5] * n)),
        "texts numbers": lambda table: table.set_column(1, "text", pa.array(list(range(len(table))))),
        "texts null": lambda table: table.set_column(1, "text", pa.array([None] * len(table), pa.string())),
        "more columns": lambda table: table.append_column("id", pa.array([["x"]] * len(table))),
        "equal ids": lambda table: table.append_column("id", pa.array(["x"] * len(table))),
    }
    for kind, change in changes.items():
        yield Attack(f"labels {kind}", "labels.parquet", written(change))


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the places of all values of a JSON object."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*prefix, key)
            yield from _paths(entry, (*prefix, key))


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Replace the value at a place."""
    if not path:
        return new
    items = dict(value) if isinstance(value, dict) else list(value)
    items[path[0]] = _replaced(value[path[0]], path[1:], new)
    return items


def _settings(config: dict[str, Any]) -> Iterator[Attack]:
    """Change each setting of config.json."""

    def written(path: tuple[Any, ...], new: Any) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            write_config(folder, _replaced(read_config(folder), path, new))

        return make

    for path in _paths({name: value for name, value in config.items() if name not in ("files", "checksum", "schema")}):
        for kind, value in VALUES.items():
            yield Attack(f"setting {kind}", "config.json:" + ".".join(map(str, path)), written(path, value))
    yield Attack("file named with NUL", "config.json", written(("files",), config["files"] | {"a\0b": "0"}))
    yield Attack("file named with half a pair", "config.json", written(("files",), config["files"] | {"\ud800": "0"}))
    yield Attack("file with a long name", "config.json", written(("files",), config["files"] | {"a" * 4096: "0"}))


def _json(folder: Path, name: str) -> Iterator[Attack]:
    """Change each value of another JSON file."""

    def written(path: tuple[Any, ...], new: Any) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            text = json.dumps(_replaced(json.loads((folder / name).read_text("utf-8")), path, new))
            (folder / name).write_text(text, "utf-8")

        return make

    places = list(_paths(json.loads((folder / name).read_text("utf-8"))))
    for path in places if len(places) < 60 else places[:40]:
        for kind, value in VALUES.items():
            yield Attack(f"json {kind}", f"{name}:" + ".".join(map(str, path)), written(path, value))


def attempt(folder: Path, good: TopK | None = None) -> str:
    """Open a folder and ask it: refused, answered, or what went wrong. What answers as `good` is asked no further."""
    try:
        index = Index.load(folder)
        first = index.predict(QUERIES, k=3)
        if good is not None and _equal(first, good):
            return "answered"
        answers = [first, index.predict(QUERIES[:1], k=3), index.predict(QUERIES * 20, k=3)]
        if index.model.probabilities is not None:
            answers += [index.predict(QUERIES, probabilities=True), index.predict(QUERIES, threshold="bins:0.5")]
        for top in answers:
            if not np.isfinite(top.scores[top.labels >= 0]).all():
                return "not finite"
            if not ((top.labels >= -1) & (top.labels < len(index.labels))).all():
                return "labels that do not exist"
        index.explain(QUERIES[0], 0)
        index.describe()
        index.label(0)
    except LongtailError as reason:
        return "refused" if "\n" not in str(reason) else f"several lines: {reason}"
    except BaseException as reason:
        return f"{type(reason).__name__}: {reason}"
    return "answered"


def _equal(one: TopK, two: TopK) -> bool:
    """Return whether answers have the same bits."""
    return np.array_equal(one.labels, two.labels) and np.array_equal(one.scores, two.scores)


def _sealed(folder: Path, name: str) -> str:
    """Make the checksum of a file fit again; return `refused` where even the list of files is."""
    try:
        config = read_config(folder)
    except LongtailError:
        return "refused"
    if name in config["files"]:
        write_config(folder, config | {"files": config["files"] | {name: checksum(folder / name)}})
    return ""


def tell(what: dict[str, Any]) -> None:
    """Write a line to the parent."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _peak() -> int:
    """Return the most memory that this process ever used; what resource tells begins with that of its parent."""
    usage = memory_usage()
    return 0 if usage is None else usage[1]


def run(folder: Path, places: list[int]) -> None:
    """Try some attacks on a folder; put it back as it was after each."""
    own = attacks(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    tell({"place": -1, "end": attempt(folder)})
    good, peak = Index.load(folder).predict(QUERIES, k=3), _peak()
    for place in places:
        attack = own[place]
        name = attack.place.partition(":")[0]
        tell({"place": place})
        try:
            attack.make(folder)
        except (ValueError, TypeError, LookupError, OverflowError, pa.ArrowException):
            end = "impossible"  # such a folder cannot even be written
        else:  # most settings of a recipe are those of its training
            same = good if attack.place.startswith("config.json:recipe.") else None
            end = _sealed(folder, name) or attempt(folder, same)
        now = _peak()
        if now > peak + ALLOWED:
            end, peak = f"{(now - peak) >> 20} MB", now
        tell({"place": place, "end": end})
        for changed in {name, "config.json"}:
            (folder / changed).write_bytes(before[changed])
        (folder / "labels.journal.jsonl").unlink(missing_ok=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    run(Path(sys.argv[1]), json.loads(sys.argv[2]))
