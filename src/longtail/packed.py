"""PACKED BYTES → AS MANY AS THEY ARE WORTH: what a compressed file may unpack to, before it takes the memory.

A small file can stand for gigabytes: gzip and zip make a thousand zeros of one byte, and Parquet repeats one long text
for every row. What unpacks to more than RATIO times its size is refused, unless it is small or the user raises the cap.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from longtail.errors import DataError, LongtailError
from longtail.files import regular

VARIABLE = "LONGTAIL_MAX_RATIO"
RATIO = 50  # times its own size that a file may unpack to; texts and matrices stay below 20
SMALL = 256 * 2**20  # bytes that any file may unpack to


def largest(packed: int) -> int:
    """Return how many bytes so many packed ones may unpack to.

    >>> largest(1000) == SMALL, largest(100 * 2**20) == 5000 * 2**20
    (True, True)
    """
    given = os.environ.get(VARIABLE, "")
    if given and not given.isdecimal():
        raise DataError(f"the environment variable {VARIABLE} is {given!r}", remedy="give a whole number, such as 1000")
    return max(SMALL, int(given or RATIO) * packed)


def remedy(packed: int, unpacked: int) -> str:
    """Say how a file that unpacks to more than is allowed is read all the same."""
    return f"unpack it first, or set {VARIABLE}={-(-unpacked // max(packed, 1))} if you trust it"


def refuse_swollen(path: Path, unpacked: int, error: type[LongtailError] = DataError) -> None:
    """Refuse a file that says that it unpacks to more than is allowed."""
    size = regular(path, links=True)
    if unpacked > largest(size):
        raise error(f"{path}: {size:,} bytes unpack to {unpacked:,}; {remedy(size, unpacked)}")


def parquet_table(
    path: Path, names: Sequence[str] | None = None, *, rows: int | None = None, codecs: Sequence[str] = (),
    error: type[LongtailError] = DataError,
) -> pa.Table:  # fmt: skip
    """Read columns of a Parquet file. Texts are counted before each is written as often as it occurs.

    `rows` is how many there must be, `codecs` how the file may be compressed, where that is known.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        about, schema = file.metadata, file.schema_arrow
        if rows is not None and about.num_rows != rows:
            raise error(f"{path}: has {about.num_rows:,} rows, not {rows:,}; write the folder again")
        groups = [about.row_group(place) for place in range(about.num_row_groups)]
        asked = groups if codecs else []  # pyarrow aborts where what it says of a damaged column cannot be made
        used = {group.column(place).compression for group in asked for place in range(group.num_columns)}
        if not used <= {*codecs}:
            raise error(
                f"{path}: compressed by {', '.join(sorted(used))}, not by {' or '.join(codecs)}; write it again"
            )
        widths = [_width(field.type) for field in schema if names is None or field.name in names]
        fixed = about.num_rows * sum(widths)
        refuse_swollen(path, max(fixed, sum(group.total_byte_size for group in groups)), error)
        texts = [
            field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        ]
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=texts) as file:
        table = file.read(names, use_threads=False)
    total = fixed
    for name in texts if names is None else [name for name in texts if name in names]:
        total += sum(_repeated(chunk) for chunk in table[name].chunks)
    refuse_swollen(path, total, error)
    return table.cast(pa.schema([schema.field(name) for name in table.column_names]))


def _width(kind: pa.DataType) -> int:
    """Return the bytes that a row of a column takes at least."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:  # lists and texts: as much as they hold
        return 0


def _repeated(chunk: pa.Array) -> int:
    """Count the bytes of texts once each is written as often as it occurs."""
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
    return int(pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0) + 8 * len(chunk)
