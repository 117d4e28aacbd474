"""SPARSE MATRIX FILES ↔ CSR: the XMC repository's text layout and scipy's npz.

    n_rows n_cols          header
    3:1.0 17:0.25          row 0: `column:value`, ascending
                           a blank line is an empty row

Regular files are parsed as a whole by numpy; only a file that is not regular is read line by line, to say where. No
array is sized by a number that a file claims: rows are counted, and headers are compared with the count.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.formats.lines import read_bytes, split_lines, write_texts
from longtail.data.formats.rows import Place, Points
from longtail.data.formats.values import short, shortest
from longtail.data.problems import Problems
from longtail.errors import DataError
from longtail.packed import refuse_swollen

MOST_COLUMNS = 2**31 - 1
_NUMBER = rb"[-+]?(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?+"
_ENTRY = rb"\d{1,15}+:" + _NUMBER
_REGULAR = re.compile(rb"(?:(?:" + _ENTRY + rb"(?: " + _ENTRY + rb")*+)?+ ?+\r?+\n)*+")
_ONE = re.compile(rb"(-?\d{1,18}):(" + _NUMBER + rb"|[-+]?(?:nan|inf))", re.IGNORECASE)


@dataclass
class Entries:
    """The stored entries of a sparse matrix, row by row, not yet checked against its width."""

    at: Place
    counts: NDArray[np.int64]  # (N,)
    columns: NDArray[np.int64]  # flat
    values: NDArray[np.float64]  # flat
    width: int

    def points(self) -> Points:
        """Take the entries as labels of points."""
        values = None if (self.values == 1).all() else self.values
        return Points(self.at, self.counts, self.columns, values, width=self.width)

    def matrix(self, problems: Problems) -> sp.csr_array:
        """Take the entries as features: finite, inside the width, duplicates summed."""
        if self.width > MOST_COLUMNS:
            found = f"{self.width:,} columns"
            raise problems.fatal("header", found, file=self.at.file, line=1, remedy=f"use at most {MOST_COLUMNS:,}")
        wrong = (self.columns < 0) | (self.columns >= self.width) | ~(np.abs(self.values) < 3e38)
        if wrong.any():
            rows = np.repeat(np.arange(len(self.counts)), self.counts)
            for n in np.flatnonzero(wrong):
                found = f"entry {self.columns[n]}:{self.values[n]} in a matrix with {self.width:,} columns"
                line = self.at.line(int(rows[n]))
                remedy = "use columns below the width of the header and finite values"
                problems.error("feature out of range", found, file=self.at.file, line=line, remedy=remedy)
            self.counts = self.counts - np.bincount(rows[wrong], minlength=len(self.counts))
        shape = (len(self.counts), self.width)
        indptr = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)
        values = self.values[~wrong].astype(np.float32)
        return canonical(sp.csr_array((values, self.columns[~wrong].astype(np.int32), indptr), shape=shape))


def canonical(matrix: sp.csr_array) -> sp.csr_array:
    """Return a float32 copy with sorted columns, duplicates summed and zeros dropped."""
    matrix = matrix.astype(np.float32, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def read_header(lines: list[bytes], numbers: int, path: Path, problems: Problems) -> list[int]:
    """Read the integers of the first line."""
    cells = lines[0].split() if lines else []
    if len(cells) != numbers or not all(cell.isdigit() and len(cell) < 19 for cell in cells):
        found = f"header {short(lines[0][:80].decode('utf-8', 'replace'))}" if lines else "an empty file"
        remedy = f"begin with {numbers} integers: rows, {'features, labels' if numbers == 3 else 'columns'}"
        raise problems.fatal("header", found, file=path, line=1, remedy=remedy)
    return [int(cell) for cell in cells]


def read_body(lines: list[bytes], rows: int, path: Path, problems: Problems) -> list[bytes]:
    """Return the lines after the header and compare their number with the header."""
    body = lines[1:]
    while len(body) > rows and not body[-1].strip():
        body.pop()
    if len(body) != rows:
        remedy = "correct the header or restore the missing rows"
        problems.error(
            "header", f"the header says {rows:,} rows, {len(body):,} follow", file=path, line=1, remedy=remedy
        )
    return body


def read_sparse(path: Path, problems: Problems) -> Entries:
    """Read a sparse matrix from a text file."""
    lines = split_lines(read_bytes(path, problems))
    rows, width = read_header(lines, 2, path, problems)
    body = read_body(lines, rows, path, problems)
    return parse_entries(body, width, Place(path, range(2, len(body) + 2)), problems)


def parse_entries(lines: list[bytes], width: int, place: Place, problems: Problems) -> Entries:
    """Parse lines of `column:value`."""
    body = b"\n".join([*lines, b""])
    if _REGULAR.fullmatch(body):
        codes = np.frombuffer(body, np.uint8)
        ends = np.searchsorted(np.flatnonzero(codes == ord(":")), np.flatnonzero(codes == ord("\n")))
        counts = np.diff(ends, prepend=0).astype(np.int64)
        numbers = np.zeros(0)
        if counts.any():
            numbers = np.fromstring(body.replace(b":", b" ").decode("ascii"), np.float64, sep=" ")
        return Entries(place, counts, numbers[::2].astype(np.int64), numbers[1::2], width)
    sizes, columns, values = [], [], []
    for row, line in enumerate(lines):
        count = 0
        for entry in line.split():
            match = _ONE.fullmatch(entry)
            if match:
                columns.append(int(match[1]))
                values.append(float(match[2]))
                count += 1
            else:
                text = short(entry[:80].decode("utf-8", "replace"))
                remedy = "write `column:value` pairs separated by blanks"
                problems.error("bad entry", f"{text} is no entry", file=place.file, line=place.line(row), remedy=remedy)
        sizes.append(count)
    arrays = np.array(sizes, np.int64), np.array(columns, np.int64), np.array(values, np.float64)
    return Entries(place, *arrays, width)


def row_strings(matrix: sp.csr_array) -> Iterator[str]:
    """Write the entries of every row as `column:value column:value`."""
    entries = [
        f"{column}:{value}" for column, value in zip(matrix.indices.tolist(), shortest(matrix.data), strict=True)
    ]
    ends = matrix.indptr.tolist()
    return (" ".join(entries[start:stop]) for start, stop in pairwise(ends))


def write_sparse(path: Path, matrix: sp.csr_array) -> None:
    """Write a sparse matrix as text."""
    rows, columns = matrix.shape
    write_texts(path, [f"{rows} {columns}", *row_strings(matrix)])


def read_npz(path: Path, problems: Problems) -> Entries:
    """Read a CSR matrix that scipy.sparse.save_npz wrote; no pickle, and no size that is not borne out by bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_swollen(path, sum(member.file_size for member in archive.infolist()))
            arrays = {
                name: _array(archive.read(f"{name}.npy")) for name in ("format", "shape", "indptr", "indices", "data")
            }
        if arrays["format"].tobytes().rstrip(b"\0").replace(b"\0", b"") != b"csr":
            raise ValueError("not a CSR matrix")
        rows, width = (int(n) for n in arrays["shape"])
        indptr, columns, values = (arrays[name].ravel() for name in ("indptr", "indices", "data"))
        if indptr.dtype.kind not in "iu" or columns.dtype.kind not in "iu" or values.dtype.kind not in "fiub":
            raise ValueError("an array of a wrong type")
        ends = indptr.astype(np.int64)
        bounds = len(ends) == rows + 1 and ends[0] == 0 and ends[-1] == len(columns) == len(values)
        if not bounds or (ends[1:] < ends[:-1]).any() or width < 0:
            raise ValueError("the arrays do not fit the shape")
    except DataError:
        raise
    except Exception as reason:  # zip and npy damage shows itself in a dozen exception types; every one means this
        remedy = "save it again with scipy.sparse.save_npz as CSR"
        raise problems.fatal("damaged npz", f"damaged ({short(reason)})", file=path, remedy=remedy) from None
    place = Place(path, range(1, rows + 1))
    return Entries(place, ends[1:] - ends[:-1], columns.astype(np.int64), values.astype(np.float64), width)


def _array(content: bytes) -> NDArray[Any]:
    """Read one npy array; its header must account for every byte that follows."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    items = 1
    for n in shape:
        items *= int(n)
    rest = content[file.tell() :]
    if dtype.hasobject or items < 0 or items * dtype.itemsize != len(rest):
        raise ValueError(f"{items} items of {dtype} in {len(rest)} bytes")
    return np.frombuffer(rest, dtype)


def write_npz(path: Path, matrix: sp.csr_array) -> None:
    """Write a CSR matrix as scipy.sparse.save_npz does."""
    shape = np.array(matrix.shape, np.int64)
    arrays = {"indices": matrix.indices, "indptr": matrix.indptr, "format": np.array(b"csr"), "shape": shape}
    np.savez_compressed(path, allow_pickle=False, **arrays, data=matrix.data)
