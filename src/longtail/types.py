"""The nouns that travel between the stages, and the legend of their shapes.

N points, B batch, T tokens, V vocabulary, D dimensions, L labels, M meta-labels, K candidates, k top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, overload

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import MissingExtra
from longtail.markup import html_table

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int32]
Progress: TypeAlias = Callable[[str, int, int], None]  # told (what, steps done, steps in all)
SHOWN = 20  # points of a table in a notebook
CELLS = 2**22  # places of a matrix that are filled at once
LabelMatrix: TypeAlias = sp.csr_array  # (N, L) float32, sorted indices, values in (0, 1]


def counted(count: int, noun: str) -> str:
    """Name so many things: one in the singular.

    >>> counted(1, "label"), counted(1200, "label")
    ('1 label', '1,200 labels')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def label_matrix(
    indptr: NDArray[Any], indices: NDArray[Any], shape: tuple[int, int], values: NDArray[Any] | None = None
) -> LabelMatrix:
    """Build a canonical CSR: float32, sorted, no duplicates (the largest value wins), no explicit zeros."""
    data = np.ones(len(indices), np.float32) if values is None else np.asarray(values, np.float32)
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    order = np.lexsort((-data, indices, rows))
    rows, columns, data = rows[order], np.asarray(indices)[order], data[order]
    keep = data > 0
    if len(rows) > 1:
        keep[1:] &= (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    rows, columns, data = rows[keep], columns[keep].astype(np.int32), data[keep]
    counts = np.bincount(rows, minlength=shape[0])
    pointer = np.concatenate([[0], np.cumsum(counts)])
    index_type = np.int32 if len(columns) < 2**31 else np.int64
    return sp.csr_array((data, columns, pointer.astype(index_type)), shape=shape)


def no_pairs(shape: tuple[int, int]) -> LabelMatrix:
    """Return an empty (N, L) matrix."""
    return cast(LabelMatrix, sp.csr_array(shape, dtype=np.float32))


def rows_of(columns: NDArray[Any], values: NDArray[Any], width: int) -> sp.csr_array:
    """Turn columns (N, n), -1 where there are fewer, and their values into a matrix (N, width).

    >>> rows_of(np.array([[2, 0], [1, -1]]), np.array([[5, 6], [7, 0]]), 3).toarray().tolist()
    [[6.0, 0.0, 5.0], [0.0, 7.0, 0.0]]
    """
    mask = columns >= 0
    starts = np.append(0, np.cumsum(mask.sum(axis=1)))
    return sp.csr_array((values[mask].astype(np.float32), columns[mask], starts), shape=(len(columns), width))


def without(matrix: sp.csr_array, pairs: sp.csr_array) -> sp.csr_array:
    """Drop the entries of a matrix that another one has too.

    >>> one, other = sp.csr_array(np.array([[1, 2, 0]])), sp.csr_array(np.array([[0, 1, 1]]))
    >>> without(one, other).toarray().tolist()
    [[1, 0, 0]]
    """
    if matrix.nnz == 0 or pairs.nnz == 0:
        return matrix
    rest = sp.csr_array(matrix - matrix.multiply(pairs > 0))
    rest.eliminate_zeros()
    return rest


class Texts(Sequence[str]):
    """An immutable sequence of texts on Arrow memory; slices and selections copy no Python strings.

    >>> Texts(["a b", "c"])[1]
    'c'
    >>> Texts(["a", "b", "c"]).take([2, 0]).tolist()
    ['c', 'a']
    """

    __slots__ = ("array",)
    array: pa.LargeStringArray

    def __init__(self, texts: Iterable[str] | pa.Array | pa.ChunkedArray) -> None:
        if isinstance(texts, Texts):
            array = texts.array
        elif isinstance(texts, pa.ChunkedArray):
            array = texts.chunk(0) if texts.num_chunks == 1 else texts.combine_chunks()
        elif isinstance(texts, pa.Array):
            array = texts
        else:
            array = pa.array(texts if isinstance(texts, list) else list(texts), pa.large_string())
        self.array = array if array.type == pa.large_string() else array.cast(pa.large_string())

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Texts: ...
    def __getitem__(self, index: int | slice) -> str | Texts:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return Texts(self.array.slice(start, max(0, stop - start)))
            return self.take(np.arange(start, stop, step))
        return str(self.array[int(index)].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 65536):
            yield from self.array.slice(start, 65536).to_pylist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and self.array.equals(other.array)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({len(self)})"

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Texts:
        """Select rows."""
        return Texts(self.array.take(pa.array(np.asarray(rows, np.int64))))

    def tolist(self) -> list[str]:
        """Copy to a list of Python strings."""
        out: list[str] = self.array.to_pylist()
        return out


def joined(*parts: Texts) -> Texts:
    """Concatenate texts."""
    return Texts(pa.concat_arrays([part.array for part in parts]))


@dataclass(frozen=True, eq=False)
class TopK:
    """The k best labels of N points, best first; rows with fewer are padded with label -1 and score -inf.

    >>> top = TopK(np.array([[1, -1]], np.int32), np.array([[0.5, -np.inf]], np.float32), Texts(["cat", "dog"]))
    >>> top[0]
    [(1, 'dog', 0.5)]
    """

    labels: Ints  # (N, k)
    scores: Floats  # (N, k)
    names: Texts | None = None  # (L,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> list[tuple[int, str, float]]:
        """List (label, text, score) of one point."""
        pairs, names = zip(self.labels[row].tolist(), self.scores[row].tolist(), strict=True), self.names
        return [(label, names[label] if names else str(label), score) for label, score in pairs if label >= 0]

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each label of each point, best first."""
        try:
            import pandas as pd  # noqa: PLC0415  (only those who ask for it need it)
        except ImportError:
            raise MissingExtra("pandas", "frames") from None
        rows = [(point, rank, *entry) for point in range(len(self)) for rank, entry in enumerate(self[point], 1)]
        return pd.DataFrame(rows, columns=["point", "rank", "label", "text", "score"])

    def _repr_html_(self) -> str:
        heads = ("point", *(f"{place + 1}" for place in range(self.labels.shape[1])))
        rows = [
            (f"{row}", *(f"{text} ({score:.3g})" for _, text, score in self[row]))
            for row in range(min(len(self), SHOWN))
        ]
        more = f", the first {SHOWN}" if len(self) > SHOWN else ""
        return html_table(heads, rows, f"the best labels of {counted(len(self), 'text')}{more}")

    def without(self, pairs: LabelMatrix, k: int | None = None) -> TopK:
        """Drop the (point, label) pairs that must not be counted, then keep the first k that are left."""
        k = self.labels.shape[1] if k is None else k
        drop = contains(pairs, self.labels) | (self.labels < 0)
        order = np.argsort(drop, axis=1, kind="stable")[:, :k]
        dropped = np.take_along_axis(drop, order, 1)
        labels = np.where(dropped, -1, np.take_along_axis(self.labels, order, 1)).astype(np.int32)
        scores = np.where(dropped, -np.inf, np.take_along_axis(self.scores, order, 1)).astype(np.float32)
        return TopK(labels, scores, self.names)


def contains(pairs: LabelMatrix, labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each cell of labels (N, k) whether that (row, label) is stored in pairs (N, L)."""
    n, width = pairs.shape
    keys = np.repeat(np.arange(n, dtype=np.int64), np.diff(pairs.indptr)) * width + pairs.indices
    if len(keys) == 0:
        return np.zeros(labels.shape, np.bool_)
    wanted = np.arange(n, dtype=np.int64)[:, None] * width + labels
    place = np.minimum(np.searchsorted(keys, wanted.ravel()), len(keys) - 1)
    found: NDArray[np.bool_] = (keys[place] == wanted.ravel()).reshape(labels.shape) & (labels >= 0)
    return found


def best_of(scores: sp.csr_array, k: int, names: Texts | None = None) -> TopK:
    """Take the k largest stored entries of each row; equal scores go to the smaller label."""
    n, sizes = scores.shape[0], np.diff(scores.indptr)
    if not scores.has_sorted_indices:
        scores = scores.sorted_indices()
    labels, values = np.full((n, k), -1, np.int32), np.full((n, k), -np.inf, np.float32)
    block = max(1, CELLS // max(1, int(sizes.max(initial=0))))
    for start in range(0, n, block):
        some = sizes[start : start + block]
        wide = np.arange(some.max(initial=0)) < some[:, None]  # (B, W)
        entries = slice(scores.indptr[start], scores.indptr[start + len(some)])
        losses, columns = np.full(wide.shape, np.inf, np.float32), np.full(wide.shape, -1, np.int32)
        losses[wide], columns[wide] = -scores.data[entries], scores.indices[entries]
        order = np.argsort(losses, axis=1, kind="stable")[:, :k]  # columns ascend in a row
        out = slice(start, start + len(some)), slice(0, order.shape[1])
        labels[out], values[out] = np.take_along_axis(columns, order, 1), -np.take_along_axis(losses, order, 1)
    return TopK(labels, values, names)
