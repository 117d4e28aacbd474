"""ARRAYS, TEXTS, JSON ↔ DISK: written whole or not at all, opened without being read.

Arrays are kept in the safetensors layout and opened by memory map; nothing here can run code from a file.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from longtail.errors import LongtailError, ModelError, ResourceError, one_line
from longtail.types import Texts
from longtail.whole import whole_file

LARGEST_HEADER = 16 * 2**20
TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U8": "u1"}


def indented(value: object) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: object) -> None:
    """Write indented JSON, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(indented(value), encoding="utf-8")


def regular(path: Path, *, links: bool = False) -> int:
    """Return the size of a file that ends; a pipe, a device or a link out of its folder is an OSError.

    With `links` it may lie anywhere: data of the user's own.
    """
    if not links and path.is_symlink() and path.resolve().parent != path.parent.resolve():
        raise OSError(errno.ELOOP, "a link that leads out of its folder")
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return state.st_size


def read_json(path: Path, error: type[LongtailError] = ModelError, *, largest: int = LARGEST_HEADER) -> dict[str, Any]:
    """Read a JSON object of at most `largest` bytes."""
    try:
        if regular(path) > largest:
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


def write_blocks(
    path: str | Path, arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], Iterable[NDArray[Any]]]]
) -> None:
    """Write named arrays, of each its type, its shape and its rows in blocks, as `write_arrays` does."""
    head, _ = _header({name: (dtype, shape) for name, (dtype, shape, _) in arrays.items()})
    with whole_file(path) as partial:
        try:
            with Path(partial).open("wb") as file:
                file.write(head)
                for _, _, blocks in arrays.values():
                    for block in blocks:
                        file.write(np.ascontiguousarray(block).data)
        except OSError as reason:
            raise ResourceError(f"{path}: cannot be written ({reason}); nothing was changed") from None


def map_arrays(path: Path, specs: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """Make a safetensors file of arrays of given types and shapes, mapped so that they are filled in place."""
    aligned = sorted(specs.items(), key=lambda spec: -np.dtype(spec[1][0]).itemsize)
    head, places = _header({name: (np.dtype(kind), shape) for name, (kind, shape) in aligned})
    end = max((place["data_offsets"][1] for place in places.values()), default=0)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + end)
    body = np.memmap(path, np.uint8, "r+", offset=len(head)) if end else np.zeros(0, np.uint8)
    return {name: _view(body, place) for name, place in places.items()}


def _header(specs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Write the beginning of a safetensors file, and return where each array of a type and a shape stands behind it."""
    names, places, end = {np.dtype(code): name for name, code in TYPES.items()}, dict[str, dict[str, Any]](), 0
    for name, (dtype, shape) in specs.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        places[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Open the arrays of a safetensors file by memory map; every bound is checked before any view is made."""
    try:
        size = regular(path)
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
    """Map the text columns of an Arrow file: texts alone, nothing compressed; every offset is checked."""
    try:
        regular(path)
        with pa.memory_map(str(path)) as file:
            mapped = file.read_buffer()
        if len(mapped) < 14 or mapped.slice(len(mapped) - 6).to_pybytes() != b"ARROW1":
            raise ValueError("its end is missing")
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(mapped.slice(8)))
        schema = pa.ipc.read_schema(messages.read_next_message())
        batches = [_batch(message, schema) for message in messages]
        content = pa.Table.from_batches(batches, schema)
        content.validate(full=True)
        return {name: text_column(content[name]) for name in content.column_names}
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; the folder is not complete") from None
    except (OSError, EOFError, StopIteration, pa.ArrowException, ValueError, struct.error) as reason:
        raise ModelError(f"{path}: damaged ({one_line(reason)}); write the folder again") from None


def _batch(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    """Read one batch, unless it is compressed: a few bytes could take all memory."""
    if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
        raise ValueError("a compressed batch, or something else than texts")
    return pa.ipc.read_record_batch(message, schema)


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the header of a batch (a flatbuffer: Message.header, RecordBatch.compression) names a codec."""

    def field(table: int, slot: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        inside = 4 + 2 * slot < struct.unpack_from("<H", metadata, vtable)[0]
        return int(struct.unpack_from("<H", metadata, vtable + 4 + 2 * slot)[0]) if inside else 0

    root = struct.unpack_from("<I", metadata)[0]
    header = root + field(root, 2)
    return field(header + struct.unpack_from("<I", metadata, header)[0], 3) != 0


def text_column(column: pa.ChunkedArray) -> Texts:
    """Take a column of texts; numbers and gaps in their place are refused."""
    if column.type not in (pa.string(), pa.large_string()) or column.null_count:
        raise ValueError(f"a column of {column.type} with {column.null_count} gaps in place of texts")
    return Texts(column)


def released(array: NDArray[Any]) -> None:
    """Give the memory of a mapped file back; it is read again on the next access."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)
