"""BYTES ↔ DISK: whole files or nothing, and arrays that open without being read.

Everything that longtail writes goes to a temporary name first and is renamed when complete. Arrays are kept in the
safetensors layout and opened by memory map; nothing here can run code from a file.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from longtail.errors import DataError, LongtailError, ModelError, Occupied, ResourceError
from longtail.types import Texts

LARGEST_HEADER = 16 * 2**20
TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1"}


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there when the block succeeds, remove it when it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


WRITTEN = re.compile(  # every name that longtail gives to a file of a model or of a data set in any format
    r"(config|dataset|augmentation|metrics|tokenizer)\.json|README\.md|log\.csv|\w+\.(safetensors|arrow)|"
    r"(trn|tst|val|train|test|validation|lbl|labels?|filter_labels|Xf?|Yf?|Z)([._]\w+)*"
    r"\.(jsonl|json|csv|tsv|parquet|txt|npz)(\.gz)?"
)


@contextmanager
def whole_folder(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; move it there when the block succeeds, remove it when it fails.

    With `force` a folder that longtail wrote is replaced; any other content is never touched.
    """
    path = Path(path).absolute()
    if path.exists() and (path.is_file() or any(path.iterdir())):
        if not force:
            raise Occupied("exists already", file=path, remedy="choose another folder, or replace this one: force=True")
        if path.is_file() or not _written_by_us(path) or Path.cwd().is_relative_to(path.resolve()):
            raise DataError("holds other things than longtail writes", file=path, remedy="choose another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    old = partial / ".replaced"
    try:
        yield partial
        partial.chmod(0o755)
        old = path.with_name(f"{partial.name}.old")
        if path.exists():
            path.replace(old)
        try:
            partial.replace(path)
        except OSError:
            if old.exists():
                old.replace(path)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _written_by_us(folder: Path) -> bool:
    """Return whether a folder holds nothing but files that longtail names so, and a config.json only of a model."""
    entries = list(folder.iterdir())
    if not all(entry.is_file() and WRITTEN.fullmatch(entry.name) for entry in entries):
        return False
    config = folder / "config.json"
    return not config.exists() or {"schema", "recipe", "files"} <= read_json(config, DataError).keys()


def indented(value: object) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: object) -> None:
    """Write indented JSON, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(indented(value), encoding="utf-8")


def read_json(path: Path, error: type[LongtailError] = ModelError, *, largest: int = LARGEST_HEADER) -> dict[str, Any]:
    """Read a JSON object of at most `largest` bytes."""
    try:
        if path.stat().st_size > largest:
            raise error(f"{path}: larger than {largest >> 20} MB; this is not a file that longtail wrote")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: not found; is this a folder that longtail wrote?") from None
    except (OSError, ValueError, RecursionError) as reason:
        raise error(f"{path}: not readable JSON ({reason}); write the folder again") from None
    if not isinstance(value, dict):
        raise error(f"{path}: holds {type(value).__name__}, not an object; write the folder again")
    return value


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays to one safetensors file, whole or not at all."""
    with whole_file(path) as partial:
        try:
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, partial)
        except SafetensorError as reason:  # what it raises instead of OSError
            raise ResourceError(f"{path}: cannot be written ({reason}); nothing was changed") from None


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Open the arrays of a safetensors file by memory map; every bound is checked before any view is made."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LARGEST_HEADER):
                raise ValueError(f"header of {length} bytes in a file of {size}")
            header = json.loads(file.read(length).decode("utf-8"))
        body = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.zeros(0, np.uint8)
        return {name: _view(body, spec) for name, spec in header.items() if name != "__metadata__"}
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; the folder is not complete") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as reason:
        raise ModelError(f"{path}: damaged ({reason}); write the folder again") from None


def _view(body: NDArray[np.uint8], spec: dict[str, Any]) -> NDArray[Any]:
    """Cut one array out of the mapped bytes."""
    dtype, shape = np.dtype(TYPES[spec["dtype"]]), tuple(int(n) for n in spec["shape"])
    begin, end = (int(n) for n in spec["data_offsets"])
    items = 1
    for n in shape:
        items *= n
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= len(body) or end - begin != items * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} does not fit bytes {begin} to {end} of {len(body)}")
    return np.asarray(body[begin:end]).view(dtype).reshape(shape)


def write_texts(path: Path, columns: Mapping[str, Texts]) -> None:
    """Write text columns as one Arrow file with one batch, whole or not at all."""
    table = pa.table({name: texts.array for name, texts in columns.items()}).combine_chunks()
    with (
        whole_file(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_texts(path: Path) -> dict[str, Texts]:
    """Map the text columns of an Arrow file; every offset is checked."""
    try:
        content = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        content.validate(full=True)
        return {name: Texts(content[name]) for name in content.column_names}
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; the folder is not complete") from None
    except (OSError, pa.ArrowException, ValueError) as reason:
        raise ModelError(f"{path}: damaged ({reason}); write the folder again") from None


def released(array: NDArray[Any]) -> None:
    """Give the memory of a mapped file back; it is read again on the next access."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def matrix_arrays(name: str, matrix: sp.csr_array) -> dict[str, NDArray[Any]]:
    """Name the arrays of a CSR for `write_arrays`; an empty name leaves them bare."""
    arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.data}
    arrays["shape"] = np.asarray(matrix.shape, np.int64)
    return {f"{name}.{key}" if name else key: value for key, value in arrays.items()}


def matrix_of(arrays: Mapping[str, NDArray[Any]], name: str) -> sp.csr_array:
    """Put the CSR called `name` together without copying, after checking that its indices stay inside."""
    values, indices, indptr, shape = (arrays[f"{name}.{key}"] for key in ("values", "indices", "indptr", "shape"))
    rows, columns = (int(size) for size in shape)
    valid = len(indptr) == rows + 1 and indptr[0] == 0 and int(indptr[-1]) == len(indices) == len(values)
    if not valid or bool((np.diff(indptr) < 0).any()):
        raise ModelError(f"{name} is damaged: it does not fit its shape; write the folder again")
    if len(indices) and not 0 <= indices.min() <= indices.max() < columns:
        raise ModelError(f"{name} is damaged: it names a column beyond {columns}; write the folder again")
    matrix = sp.csr_array((rows, columns), dtype=values.dtype)
    matrix.data, matrix.indices, matrix.indptr = values, indices, indptr  # no copy, no further scan
    released(indices)  # the checks have read all of it
    return matrix
