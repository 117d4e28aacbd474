"""QUERY → NEAREST ROWS: exact top-n search in sparse vectors through an impact-ordered inverted index.

For one query the short lists of its rare words are read whole. The long lists of common words are read only as far as a
row that stands in no short list could still be among the n best, usually not at all; what common words add to the rows
found so far comes from a dense column kept for each of them. Batches go through a blocked sparse product that keeps only
the n best of each row. Similarities are rounded to six decimals and equal ones go to the smaller row, so that both ways
give the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sparse_dot_topn import sp_matmul_topn

from longtail.errors import ModelError
from longtail.types import Floats, Ints

BLOCK = 1024  # queries of a batch that are multiplied at once
SPARE = 12  # further rows asked for in a batch, so that ties at the cut are seen
COMMON = 64  # a word is common if it stands in more than one of so many rows; so many words at most


class Long(NamedTuple):
    """The list of a common word of a query."""

    bound: float  # the most it can add to a similarity
    weight: float
    start: int
    end: int
    column: Floats  # (R,)


@dataclass(frozen=True, eq=False)
class Inverted:
    """Rows (R, V) with non-negative entries, and their columns ordered by impact.

    >>> index = Inverted.build(sp.csr_array(np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)))
    >>> rows, similarities = index.nearest(np.array([0]), np.array([1.0], np.float32), 2)
    >>> rows.tolist(), similarities.tolist()
    ([0, 1], [1.0, 0.6000000238418579])
    """

    rows: sp.csr_array  # (R, V)
    starts: NDArray[Any]  # (V + 1,)
    members: Ints  # rows of each word, largest impact first
    impacts: Floats

    @classmethod
    def build(cls, rows: sp.csr_array) -> Inverted:
        """Sort the entries of every word by impact."""
        columns = rows.tocsc()
        words = np.repeat(np.arange(rows.shape[1]), np.diff(columns.indptr))
        order = np.lexsort((columns.indices, -columns.data, words))
        return cls(rows, columns.indptr, columns.indices[order].astype(np.int32), columns.data[order])

    @cached_property
    def common(self) -> dict[int, Floats]:
        """Dense columns (R,) of the words with the longest lists."""
        sizes = np.diff(self.starts)
        longest = np.argsort(-sizes, kind="stable")[:COMMON]
        dense = {}
        for word in longest[sizes[longest] > max(COMMON, self.rows.shape[0] // COMMON)].tolist():
            dense[word] = np.zeros(self.rows.shape[0], np.float32)
            listed = slice(self.starts[word], self.starts[word + 1])
            dense[word][self.members[listed]] = self.impacts[listed]
        return dense

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Zeros (R,) to add up similarities in; a query leaves it as it was."""
        return np.zeros(self.rows.shape[0])

    @cached_property
    def query(self) -> NDArray[np.float64]:
        """Zeros (V,) to spread a query in; it is left as it was."""
        return np.zeros(self.rows.shape[1])

    def nearest(self, words: NDArray[Any], weights: Floats, n: int) -> tuple[NDArray[np.int64], Floats]:
        """Find the n rows most similar to one query, best first, none with similarity zero."""
        sums, members, impacts, common = self.sums, self.members, self.impacts, self.common
        starts, ends = self.starts[words].tolist(), self.starts[words + 1].tolist()
        seen: list[Ints] = []
        long: list[Long] = []
        for word, weight, start, end in zip(words.tolist(), weights.tolist(), starts, ends, strict=True):
            if end == start:
                continue
            if word in common:
                long.append(Long(weight * float(impacts[start]), weight, start, end, common[word]))
            else:
                listed = members[start:end]
                sums[listed] += np.float64(weight) * impacts[start:end]
                seen.append(listed)
        long.sort(key=lambda item: -item[0])
        lift = sum(item[0] for item in long)
        floor = self._reached(min((some for some in seen if len(some) >= n), key=len, default=None), long, n)
        rows, exact = self._finish(seen, long, n, floor - lift)
        if len(rows) >= n:
            floor = max(floor, float(exact.min()))
        enter = self._enter(long, lift, floor)
        if enter:
            rows, exact = self._finish(seen + enter, long, n, floor - lift)
        for listed in seen:
            sums[listed] = 0
        ranked = np.lexsort((rows, -exact))[:n]
        return rows[ranked].astype(np.int64), exact[ranked].astype(np.float32)

    def _reached(self, listed: Ints | None, long: list[Long], n: int) -> float:
        """Find a similarity that n rows of one list reach."""
        if listed is None:
            return 0.0
        exact = self.sums[listed]
        for item in long:
            exact += np.float64(item.weight) * item.column[listed]
        return float(np.partition(exact, len(exact) - n)[len(exact) - n]) - 1e-6

    def _enter(self, long: list[Long], rest: float, floor: float) -> list[Ints]:
        """Read the lists of common words as far as a row that stands in no short list may still get in."""
        impacts, found, missed = self.impacts, [], 0.0
        for bound, weight, start, end, _ in long:
            rest -= bound
            least = (floor - 1e-6 - missed - rest) / weight  # the impact here that a new row needs
            kept = bisect_left(range(start, end), True, key=lambda entry: impacts[entry] < least)
            if kept:
                found.append(self.members[start : start + kept])
            if kept < end - start:
                missed += weight * float(impacts[start + kept])
        return found

    def _finish(self, lists: list[Ints], long: list[Long], n: int, least: float) -> tuple[Ints, NDArray[np.float64]]:
        """Add what the common words give to the rows of the lists; return the n best or a few more."""
        if not lists or n <= 0:
            return np.zeros(0, np.int32), np.zeros(0)
        rows = lists[0] if len(lists) == 1 else np.concatenate(lists)
        exact = self.sums[rows]
        if least > 0:  # leave out what even the common words cannot lift among the n best
            hopeful = np.flatnonzero(exact >= least - 1e-6)
            rows, exact = rows[hopeful], exact[hopeful]
        for item in long:
            exact += np.float64(item.weight) * item.column[rows]
        enough = n * len(lists)  # a row stands at most once in each list, so that many entries hold at least n rows
        if len(rows) > 2 * enough:
            kept = np.flatnonzero(exact >= np.partition(exact, len(exact) - enough)[len(exact) - enough] - 1e-6)
            rows, exact = rows[kept], exact[kept]
        exact = np.round(exact, 6)
        if len(lists) > 1 and len(rows) > 1:
            order = rows.argsort()
            rows, exact = rows[order], exact[order]
            first = np.ones(len(rows), np.bool_)
            np.not_equal(rows[1:], rows[:-1], out=first[1:])
            rows, exact = rows[first], exact[first]
        if len(rows) > n:
            kept = exact >= np.partition(exact, len(exact) - n)[len(exact) - n]
            rows, exact = rows[kept], exact[kept]
        return rows, exact

    def similarity(self, rows: NDArray[Any], words: NDArray[Any], weights: Floats) -> Floats:
        """Compute the exact similarity of chosen rows with one query."""
        begin = self.rows.indptr[rows]
        sizes = self.rows.indptr[rows + 1] - begin
        ends = sizes.cumsum()
        entries = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begin - ends + sizes, sizes)
        query = self.query
        query[words] = weights
        products = query[self.rows.indices[entries]] * self.rows.data[entries]
        query[words] = 0
        owners = np.repeat(np.arange(len(rows)), sizes)
        return np.round(np.bincount(owners, weights=products, minlength=len(rows)), 6).astype(np.float32)

    def pairs(self, queries: sp.csr_array, asked: NDArray[Any], rows: NDArray[Any]) -> Floats:
        """Compute the exact similarity of pairs: query asked[i] with row rows[i]."""
        product = queries.astype(np.float64)[asked].multiply(self.rows[rows])
        return np.round(np.asarray(product.sum(axis=1)).ravel(), 6).astype(np.float32)

    def nearest_batch(self, queries: sp.csr_array, n: int, threads: int = 2) -> tuple[NDArray[np.int64], Floats]:
        """Find the n nearest rows of many queries: (N, n) rows padded with -1, and their similarities."""
        found = np.full((queries.shape[0], n), -1, np.int64)
        values = np.zeros((queries.shape[0], n), np.float32)
        columns = sp.csr_matrix(self.rows.T)  # the product wants the older class
        wide = n + SPARE
        for start in range(0, queries.shape[0], BLOCK):
            block = queries[start : start + BLOCK]
            product = sp_matmul_topn(
                sp.csr_matrix(block), columns, top_n=wide, threshold=0.0, sort=True, n_threads=threads
            )
            sizes = np.diff(product.indptr)
            asked = np.repeat(np.arange(block.shape[0]), sizes)
            rows, exact = product.indices, self.pairs(block, asked, product.indices)
            order = np.lexsort((rows, -exact, asked))
            place = np.arange(len(rows)) - np.repeat(product.indptr[:-1], sizes)
            kept = place < n
            found[start + asked[kept], place[kept]] = rows[order][kept]
            values[start + asked[kept], place[kept]] = exact[order][kept]
            full = np.flatnonzero(sizes == wide)
            last, cut = product.data[product.indptr[full + 1] - 1], product.data[product.indptr[full] + n - 1]
            for row in full[cut - last < 2e-6]:  # more equal rows than were asked for: the smaller ones must win
                own = slice(block.indptr[row], block.indptr[row + 1])
                found[start + row], values[start + row] = self.nearest(block.indices[own], block.data[own], n)
        return found, values

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        held = {"values": self.rows.data, "indices": self.rows.indices, "indptr": self.rows.indptr}
        held |= {"shape": np.asarray(self.rows.shape, np.int64), "starts": self.starts}
        return {
            f"{name}.{key}": value for key, value in (held | {"members": self.members, "impacts": self.impacts}).items()
        }

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]], name: str) -> Inverted:
        """Put the arrays of a model file together, after checking that they fit each other."""
        rows = matrix_of(held, name)
        starts, members, impacts = (held[f"{name}.{key}"] for key in ("starts", "members", "impacts"))
        sound = len(starts) == rows.shape[1] + 1 and len(members) == len(impacts) == rows.nnz == int(starts[-1])
        if (
            not sound
            or (np.diff(starts) < 0).any()
            or (len(members) and not 0 <= members.min() <= members.max() < rows.shape[0])
        ):
            raise ModelError(f"{name} is damaged; train the model again")
        return cls(rows, starts, members, impacts)


def matrix_of(held: Mapping[str, NDArray[Any]], name: str) -> sp.csr_array:
    """Assemble the CSR called `name` from named arrays without copying, after checking its bounds."""
    values, indices, indptr, shape = (held[f"{name}.{key}"] for key in ("values", "indices", "indptr", "shape"))
    rows, columns = (int(size) for size in shape)
    sound = len(indptr) == rows + 1 and indptr[0] == 0 and int(indptr[-1]) == len(indices) == len(values)
    if not sound or (np.diff(indptr) < 0).any() or (len(indices) and not 0 <= indices.min() <= indices.max() < columns):
        raise ModelError(f"{name} is damaged; write the folder again")
    matrix = sp.csr_array((rows, columns), dtype=values.dtype)
    matrix.data, matrix.indices, matrix.indptr = values, indices, indptr
    return matrix
