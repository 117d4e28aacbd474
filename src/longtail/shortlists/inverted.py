"""QUERY → NEAREST ROWS: exact top-n search in sparse vectors through an impact-ordered inverted index.

For one query the short lists of its rare words are read whole. The long lists of common words are read only as far as a
row that stands in no short list could still be among the n best, usually not at all; what common words add to the rows
found so far comes from a dense column kept for each of them. Batches go through a blocked sparse product that keeps
only the n best of each row. Similarities are rounded to six decimals and equal ones go to the smaller row, so that both
ways give the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sparse_dot_topn import sp_matmul_topn

from longtail.errors import ModelError
from longtail.files import matrix_arrays, matrix_of
from longtail.types import Floats

Rows: TypeAlias = NDArray[np.int64]  # numpy gathers and scatters by these without converting them first
BLOCK = 1024  # queries of a batch that are multiplied at once
SPARE = 12  # further rows asked for in a batch, so that ties at the cut are seen
FEW = 200  # rows that are not worth thinning out
COMMON = 32  # a word is common if it stands in more than one of so many rows; so many words at most


class Long(NamedTuple):
    """The list of a common word of a query, in one group."""

    bound: float  # the most it can add to a similarity
    weight: float
    start: int
    end: int
    column: Floats  # (R,)


@dataclass(frozen=True, eq=False)
class Inverted:
    """Groups of rows (R, V) with non-negative entries, and the columns of each group ordered by impact.

    >>> index = Inverted.build(sp.csr_array(np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)))
    >>> with index.ask(np.array([0]), np.array([1.0], np.float32)) as asked:
    ...     rows, similarities = asked.nearest(0, 2)
    >>> rows.tolist(), similarities.tolist()
    ([0, 1], [1.0, 0.6000000238418579])
    """

    groups: tuple[sp.csr_array, ...]  # (R_g, V) each
    starts: NDArray[Any]  # (V * G + 1,) where the list of a word in a group begins
    members: Rows  # rows of each list, numbered through all groups, largest impact first
    impacts: Floats

    @classmethod
    def build(cls, *groups: sp.csr_array) -> Inverted:
        """Sort the entries of every word and group by impact."""
        words, rows, impacts, lists, before = groups[0].shape[1], [], [], [], 0
        for place, group in enumerate(groups):
            lists.append(group.indices.astype(np.int64) * len(groups) + place)
            rows.append(np.repeat(np.arange(before, before + group.shape[0]), np.diff(group.indptr)))
            impacts.append(group.data)
            before += group.shape[0]
        number, member, impact = np.concatenate(lists), np.concatenate(rows), np.concatenate(impacts)
        order = np.lexsort((member, -impact, number))
        sizes = np.bincount(number, minlength=words * len(groups))
        return cls(groups, np.concatenate([[0], np.cumsum(sizes)]), member[order], impact[order])

    @cached_property
    def bounds(self) -> list[int]:
        """The first row of each group, and the number of all rows."""
        return [0, *np.cumsum([group.shape[0] for group in self.groups]).tolist()]

    @cached_property
    def common(self) -> dict[int, Floats]:
        """Dense columns (R,) of the words with the longest lists."""
        edges, rows = self.starts[:: len(self.groups)], self.bounds[-1]
        sizes = np.diff(edges)
        longest = np.argsort(-sizes, kind="stable")[:COMMON]
        dense = {}
        for word in longest[sizes[longest] > max(COMMON, rows // COMMON)].tolist():
            dense[word] = np.zeros(rows, np.float32)
            dense[word][self.members[edges[word] : edges[word + 1]]] = self.impacts[edges[word] : edges[word + 1]]
        return dense

    @cached_property
    def sums(self) -> NDArray[np.float64]:
        """Zeros (R,) to add up similarities in; a query leaves it as it was."""
        return np.zeros(self.bounds[-1])

    @contextmanager
    def ask(self, words: NDArray[Any], weights: Floats) -> Iterator[Asked]:
        """Add up what the rare words of one query give to every row; what was touched is cleared at the end."""
        sums, members, impacts, count = self.sums, self.members, self.impacts, len(self.groups)
        edges = [self.starts[words * count + place].tolist() for place in range(count + 1)]
        rare: list[list[int]] = []
        common: list[tuple[float, Floats, list[int]]] = []
        touched: list[Rows] = []
        for word, weight, *cuts in zip(words.tolist(), weights.tolist(), *edges, strict=True):
            if word in self.common:
                common.append((weight, self.common[word], cuts))
            elif cuts[0] < cuts[-1]:
                listed = members[cuts[0] : cuts[-1]]
                sums[listed] = sums.take(listed) + np.float64(weight) * impacts[cuts[0] : cuts[-1]]
                touched.append(listed)
                rare.append(cuts)
        try:
            yield Asked(self, rare, common)
        finally:
            for listed in touched:
                sums[listed] = 0

    def pairs(self, group: int, queries: sp.csr_array, asked: NDArray[Any], rows: NDArray[Any]) -> Floats:
        """Compute the exact similarity of pairs: query asked[i] with row rows[i] of a group."""
        product = queries.astype(np.float64)[asked].multiply(self.groups[group][rows])
        return np.round(np.asarray(product.sum(axis=1)).ravel(), 6).astype(np.float32)

    def nearest_batch(
        self, group: int, queries: sp.csr_array, n: int, threads: int = 2
    ) -> tuple[NDArray[np.int64], Floats]:
        """Find the n nearest rows of many queries: (N, n) rows padded with -1, and their similarities."""
        found = np.full((queries.shape[0], n), -1, np.int64)
        values = np.zeros((queries.shape[0], n), np.float32)
        columns = sp.csr_matrix(self.groups[group].T)  # the product wants the older class
        wide = n + SPARE
        for start in range(0, queries.shape[0], BLOCK):
            block = queries[start : start + BLOCK]
            product = sp_matmul_topn(
                sp.csr_matrix(block), columns, top_n=wide, threshold=0.0, sort=True, n_threads=threads
            )
            sizes = np.diff(product.indptr)
            asked = np.repeat(np.arange(block.shape[0]), sizes)
            rows, exact = product.indices, self.pairs(group, block, asked, product.indices)
            order = np.lexsort((rows, -exact, asked))
            place = np.arange(len(rows)) - np.repeat(product.indptr[:-1], sizes)
            kept = place < n
            found[start + asked[kept], place[kept]] = rows[order][kept]
            values[start + asked[kept], place[kept]] = exact[order][kept]
            full = np.flatnonzero(sizes == wide)
            last, cut = product.data[product.indptr[full + 1] - 1], product.data[product.indptr[full] + n - 1]
            for row in full[cut - last < 2e-6]:  # more equal rows than were asked for: the smaller ones must win
                own = slice(block.indptr[row], block.indptr[row + 1])
                with self.ask(block.indices[own], block.data[own]) as one:
                    found[start + row], values[start + row] = one.nearest(group, n)
        return found, values

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays for a model file."""
        held = {"starts": self.starts, "members": self.members, "impacts": self.impacts}
        for place, group in enumerate(self.groups):
            held |= matrix_arrays(f"group{place}", group)
        return held

    @classmethod
    def of_arrays(cls, held: Mapping[str, NDArray[Any]], groups: int) -> Inverted:
        """Put the arrays of a model file together, after checking that they fit each other."""
        index = cls(
            tuple(matrix_of(held, f"group{place}") for place in range(groups)),
            held["starts"], held["members"], held["impacts"],
        )  # fmt: skip
        entries, words = sum(group.nnz for group in index.groups), index.groups[0].shape[1]
        sound = len(index.starts) == words * groups + 1 and all(group.shape[1] == words for group in index.groups)
        sound = sound and len(index.members) == len(index.impacts) == entries == int(index.starts[-1])
        sound = sound and index.starts[0] == 0 and not (np.diff(index.starts) < 0).any()
        if not sound or (entries and not 0 <= index.members.min() <= index.members.max() < index.bounds[-1]):
            raise ModelError("the inverted index is damaged; train the model again")
        return index


@dataclass(frozen=True, eq=False)
class Asked:
    """One query while its sums lie in the index."""

    index: Inverted
    rare: list[list[int]]  # of each rare word, where its list in each group begins, and the end
    common: list[tuple[float, Floats, list[int]]]  # weight, column and the same cuts of each common word

    def similarity(self, group: int, rows: NDArray[Any]) -> Floats:
        """Tell the similarity of chosen rows of a group."""
        rows = rows + self.index.bounds[group]
        exact = self.index.sums.take(rows)
        for weight, column, _ in self.common:
            exact += np.float64(weight) * column.take(rows)
        rounded: Floats = np.round(exact, 6).astype(np.float32)
        return rounded

    def nearest(self, group: int, n: int) -> tuple[NDArray[np.int64], Floats]:
        """Find the n rows of a group most similar to the query, best first, none with similarity zero."""
        index = self.index
        seen = [index.members[cuts[group] : cuts[group + 1]] for cuts in self.rare if cuts[group] < cuts[group + 1]]
        long = [
            Long(weight * float(index.impacts[cuts[group]]), weight, cuts[group], cuts[group + 1], column)
            for weight, column, cuts in self.common
            if cuts[group] < cuts[group + 1]
        ]
        long.sort(key=lambda item: -item.bound)
        lift = sum(item.bound for item in long)
        floor = self._reached(min((some for some in seen if len(some) >= n), key=len, default=None), long, n)
        rows, exact = self._finish(seen, long, n, floor)
        if len(rows) >= n:
            floor = max(floor, float(exact.min()))
        enter = self._enter(long, lift, floor) if lift >= floor - 1e-6 else []
        if enter:
            rows, exact = self._finish(seen + enter, long, n, floor)
        ranked = np.lexsort((rows, -exact))[:n]
        return rows[ranked] - index.bounds[group], exact[ranked].astype(np.float32)

    def _reached(self, listed: Rows | None, long: list[Long], n: int) -> float:
        """Find a similarity that n rows of one list reach."""
        if listed is None:
            return 0.0
        exact = self.index.sums.take(listed)
        for item in long:
            exact += np.float64(item.weight) * item.column.take(listed)
        return float(np.partition(exact, len(exact) - n)[len(exact) - n]) - 1e-6

    def _enter(self, long: list[Long], rest: float, floor: float) -> list[Rows]:
        """Read the lists of common words as far as a row that stands in no short list may still get in."""
        impacts, found, missed = self.index.impacts, [], 0.0
        for bound, weight, start, end, _ in long:
            rest -= bound
            least = (floor - 1e-6 - missed - rest) / weight  # the impact here that a new row needs
            kept = bisect_left(range(start, end), True, key=lambda entry, least=least: impacts[entry] < least)  # type: ignore[misc]
            if kept:
                found.append(self.index.members[start : start + kept])
            if kept < end - start:
                missed += weight * float(impacts[start + kept])
        return found

    def _finish(self, lists: list[Rows], long: list[Long], n: int, floor: float) -> tuple[Rows, NDArray[np.float64]]:
        """Add what the common words give to the rows of the lists; return the n best or a few more."""
        if not lists or n <= 0:
            return np.zeros(0, np.int64), np.zeros(0)
        rows = lists[0] if len(lists) == 1 else np.concatenate(lists)
        exact = self.index.sums.take(rows)
        rest = sum(item.bound for item in long)
        for item in (None, *long):
            if item is not None:
                exact += np.float64(item.weight) * item.column.take(rows)
                rest -= item.bound
            if floor > rest and len(rows) > FEW:  # leave out what the words still to come cannot lift among the n best
                hopeful = np.flatnonzero(exact >= floor - rest - 1e-6)
                rows, exact = rows.take(hopeful), exact.take(hopeful)
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
