"""QUERY → NEAREST ROWS: top-n search in sparse vectors, the rarest words of the query first.

The lists of the rarest words are read, as long as they hold `MAX_READ` entries together and one list at least: they
name the candidates. Those that these words favour most are compared with the whole query. So a row that shares only
common words with a query is found when the query has no others. Rows that are equal would be favoured alike: chance
numbers in the lists decide which of them are looked at, so that one query and many are answered alike.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import matrix_arrays, matrix_of
from longtail.errors import ModelError
from longtail.files import released
from longtail.machine import compiles, in_threads
from longtail.types import Floats, Ints

MAX_READ = 8192  # entries of the lists of rare words
SPARE = 10  # candidates that are compared with the whole query, beyond those asked for
TIE_BREAK = np.float32(2**-10)  # weights in lists are smaller by so much at most, by chance, to tell equal rows apart
BLOCK = 512  # queries of a batch that a thread works on at once
Bags = tuple[NDArray[Any], NDArray[Any], Floats]  # starts, words and weights of queries


class Scratch(threading.local):
    """Zeros that a query writes into and clears again, for each thread."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[int, type], NDArray[Any]] = {}

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()  # copies and pickles begin with nothing

    def zeros(self, size: int, dtype: type = np.float32) -> NDArray[Any]:
        """Lend zeros."""
        if (size, dtype) not in self.arrays:
            self.arrays[size, dtype] = np.zeros(size, dtype)
        return self.arrays[size, dtype]


@dataclass(frozen=True, eq=False)
class Inverted:
    """Groups of rows (R, V) with non-negative entries, and the list of every word in each group.

    >>> index = Inverted.build(sp.csr_array(np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)))
    >>> rows, similarities = index.nearest(0, np.array([0]), np.array([1.0], np.float32), 2)
    >>> rows.tolist(), similarities.tolist()
    ([0, 1], [1.0, 0.6000000238418579])
    """

    groups: tuple[sp.csr_array, ...]  # (R_g, V) each
    lists: tuple[sp.csr_array, ...]  # (V, R_g) each
    scratch: Scratch = field(default_factory=Scratch, repr=False)

    @classmethod
    def build(cls, *groups: sp.csr_array) -> Inverted:
        """Make the lists."""
        lists = []
        for group in groups:
            by_word = sp.csr_array(group.T)
            chance = np.random.default_rng(0).random(group.shape[0], np.float32)
            by_word.data = by_word.data * (1 - TIE_BREAK * chance[by_word.indices])
            lists.append(by_word)
        return cls(groups, tuple(lists))

    def nearest(self, group: int, words: NDArray[Any], weights: Floats, n: int) -> tuple[NDArray[np.int64], Floats]:
        """Find the n rows of a group most similar to one query, best first, none with similarity zero."""
        if not compiles():
            return self._nearest(group, words, weights, n)
        found, values = np.full((1, n), -1, np.int32), np.zeros((1, n), np.float32)
        self._compiled(group, (np.array([0, len(words)]), words, weights), 0, found, values)
        count = np.count_nonzero(values)
        return found[0, :count].astype(np.int64), values[0, :count]

    def _nearest(self, group: int, words: NDArray[Any], weights: Floats, n: int) -> tuple[NDArray[np.int64], Floats]:
        """Find them without a compiler."""
        lists = self.lists[group]
        starts, ends = lists.indptr[words], lists.indptr[words + 1]
        postings = [
            (lists.indices[start:end], np.float32(weight) * lists.data[start:end])
            for start, end, weight in _rarest(starts.tolist(), ends.tolist(), weights.tolist())
        ]
        if not postings or n < 1:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        sums, wide = self.scratch.zeros(lists.shape[1]), n + SPARE
        read = np.concatenate([listed for listed, _ in postings])
        try:
            np.add.at(sums, read, np.concatenate([parts for _, parts in postings]))
            # A row stands once in a list at most, so among so many places there are enough rows.
            rows, favour = _largest(read, sums.take(read), wide * len(postings))
            places = np.arange(len(rows), dtype=np.float32)
            sums[rows] = places  # the last place of each row stays
            last = sums.take(rows) == places
        finally:
            sums[read] = 0
        rows = np.sort(_largest(rows[last], favour[last], wide)[0])
        exact = self.similarity(group, words, weights, rows)
        order = np.argsort(-exact, kind="stable")[:n]  # rows ascend: the smaller of equals is first
        order = order[exact[order] > 0]
        return rows[order], exact[order]

    def similarity(self, group: int, words: NDArray[Any], weights: Floats, rows: NDArray[Any]) -> Floats:
        """Return the similarity of one query and chosen rows of a group."""
        matrix, query = self.groups[group], self.scratch.zeros(self.groups[group].shape[1])
        if compiles():
            from longtail.search.postings import similarities  # noqa: PLC0415  (numba is an extra)

            out = np.empty(len(rows), np.float32)
            similarities(words, weights, rows, matrix.indptr, matrix.indices, matrix.data, query, out)
            return out
        entries, sizes = entries_of(matrix, rows)
        ends = np.cumsum(sizes)
        try:
            query[words] = weights
            shares = np.multiply(matrix.data.take(entries), query.take(matrix.indices.take(entries)), dtype=np.float64)
        finally:
            query[words] = 0
        before = np.concatenate([[0.0], np.cumsum(shares)])
        rounded: Floats = np.round(before[ends] - before[ends - sizes], 6).astype(np.float32)
        return rounded

    def pairs(self, group: int, queries: sp.csr_array, owners: NDArray[Any], rows: NDArray[Any]) -> Floats:
        """Return the similarity of pairs: query owners[i] with row rows[i] of a group."""
        product = queries.astype(np.float64)[owners].multiply(self.groups[group][rows])
        return np.round(np.asarray(product.sum(axis=1)).ravel(), 6).astype(np.float32)

    def nearest_batch(self, group: int, queries: sp.csr_array, n: int) -> tuple[NDArray[np.int32], Floats]:
        """Find the n nearest rows of many queries: (N, n) rows, -1 where there are fewer, and their similarities."""
        found = np.full((queries.shape[0], n), -1, np.int32)
        values = np.zeros((queries.shape[0], n), np.float32)
        if compiles():
            blocks = [slice(start, start + BLOCK) for start in range(0, len(found), BLOCK)]
            bags = queries.indptr, queries.indices, queries.data

            def work(block: slice) -> None:
                self._compiled(group, bags, block.start, found[block], values[block])

            for _ in in_threads(work, blocks) if len(blocks) > 1 else map(work, blocks):
                pass
            return found, values
        for place in range(len(found)):
            own = slice(queries.indptr[place], queries.indptr[place + 1])
            rows, similar = self._nearest(group, queries.indices[own], queries.data[own], n)
            found[place, : len(rows)], values[place, : len(rows)] = rows, similar
        return found, values

    def _compiled(self, group: int, queries: Bags, first: int, found: Ints, values: Floats) -> None:
        """Find the nearest rows of some queries, as many as there is place for."""
        from longtail.search.postings import nearest  # noqa: PLC0415  (numba is an extra)

        rows, lists = self.groups[group], self.lists[group]
        nearest(
            *queries, first, lists.indptr, lists.indices, lists.data, rows.indptr, rows.indices, rows.data, MAX_READ,
            SPARE, self.scratch.zeros(rows.shape[0]), self.scratch.zeros(rows.shape[1]), found, values,
        )  # fmt: skip

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        arrays: dict[str, NDArray[Any]] = {}
        for place, (group, lists) in enumerate(zip(self.groups, self.lists, strict=True)):
            arrays |= matrix_arrays(f"group{place}", group) | matrix_arrays(f"lists{place}", lists)
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], rows: Sequence[int], words: int) -> Inverted:
        """Put the arrays of a model file together, with so many rows in each group."""
        groups = tuple(matrix_of(arrays, f"group{place}", count, words, low=0) for place, count in enumerate(rows))
        lists = tuple(matrix_of(arrays, f"lists{place}", words, count, low=0) for place, count in enumerate(rows))
        for listed in lists:  # earlier models have wide ones, of which the cache holds half as many
            if listed.indices.dtype != np.int32:
                wide, listed.indices = listed.indices, listed.indices.astype(np.int32)
                released(wide)
        if any(one.nnz != other.nnz for one, other in zip(groups, lists, strict=True)):
            raise ModelError("the lists of the inverted index do not hold what its rows hold; train again")
        return cls(groups, lists)


def entries_of(matrix: sp.csr_array, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the entries of chosen rows lie, one row after the other, and how many each has."""
    begin = matrix.indptr[rows].astype(np.int64)
    sizes = matrix.indptr[rows + 1] - begin
    ends = np.cumsum(sizes)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begin - ends + sizes, sizes), sizes


def _largest(rows: NDArray[np.int64], values: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Keep the rows with the largest values, and all that are equal to the last of them."""
    if len(rows) <= count:
        return rows, values
    kept = values >= np.partition(values, len(values) - count)[len(values) - count]
    return rows[kept], values[kept]


def _rarest(starts: list[int], ends: list[int], weights: list[float]) -> list[tuple[int, int, float]]:
    """Choose the lists to read, shortest first: (start, end, weight of the word)."""
    read, chosen = 0, []
    for size, start, weight in sorted(
        (end - start, start, weight) for start, end, weight in zip(starts, ends, weights, strict=True)
    ):
        read += size
        if size and (read <= MAX_READ or read == size):
            chosen.append((start, start + size, weight))
    return chosen
