"""BAG OF WORDS × TREES OF CLASSIFIERS → BEST LABELS: down each tree by the few nodes that look best.

Compiled where there is a compiler; in plain Python a text takes some tens of milliseconds.

The margin m of a child counts as −max(0, 1 − m)² in the logarithm of its probability, and a label has the sum of those
on its way, as in Parabel. What the trees say is averaged.

Words name the nodes that weigh them, so that the few lists of a query's words stay at hand for all nodes on the way.

References: [Parabel]; [PECOS], whose classifiers of siblings are kept side by side, word by word, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled_if_possible
from longtail.search.prefetching import prefetch
from longtail.search.selection import insert
from longtail.types import Floats, Ints

FAR = 30.0  # a logarithm of a probability so far below zero is nothing
LINE = 16  # numbers that come from the memory at once
FINE = 16  # steps of a logarithm that are told apart where only a bound is needed


@compiled_if_possible
def find(nodes: Ints, start: int, end: int, node: int) -> int:
    """Find a node in nodes[start:end], which ascend; -1 where it is not there."""
    while start < end:
        middle = (start + end) >> 1
        if nodes[middle] < node:
            start = middle + 1
        elif nodes[middle] > node:
            end = middle
        else:
            return middle
    return -1


@compiled_if_possible
def first_from(nodes: Ints, start: int, end: int, node: int) -> int:
    """Find the first of nodes[start:end], which ascend, that is not below a node: steps that double, then halves."""
    step = 4
    while start + step < end and nodes[start + step] < node:
        start += step
        step += step
    end = min(start + step, end)
    while start < end:
        middle = (start + end) >> 1
        if nodes[middle] < node:
            start = middle + 1
        else:
            end = middle
    return start


@compiled_if_possible
def place_of(label: int, table: Ints) -> int:
    """Find where a label stands in a table of 2^n places, never full, or the free place (-1) where it would stand."""
    place = label & (len(table) - 1)
    while table[place] != label and table[place] >= 0:
        place = (place + 1) & (len(table) - 1)
    return place


@compiled_if_possible
def best(found: Ints, logs: Floats, ends: NDArray[np.int64], labels: Ints, scores: Floats) -> None:
    """Average what trees say of labels, and keep the best: those of tree t stand up to ends[t], with their logarithms.

    A label that is among the k best has, in some tree, at least the k-th largest probability of a tree, divided by the
    number of trees: only such labels are added up.
    """
    trees, k, size, steps, count = len(ends), len(labels), 1, int(FAR * FINE), 0
    least = -FAR
    for tree in range(trees):
        counts = np.zeros(steps + 1, np.int64)
        for at in range(0 if tree == 0 else ends[tree - 1], ends[tree]):
            counts[int(-logs[at] * FINE)] += 1
        more, step = counts[0], 0
        while more < k and step < steps:
            step += 1
            more += counts[step]
        least = max(least, -(step + 1) / FINE if more >= k else -FAR)
    least -= np.log(trees) + 1e-4  # a little more than rounding
    while size < 2 * ends[-1]:
        size *= 2
    table, sums, chosen = np.full(size, -1, np.int32), np.zeros(size, np.float32), np.empty(ends[-1], np.int64)
    for at in range(ends[-1]):
        chosen[count] = at
        count += logs[at] >= least
    for at in chosen[:count]:
        table[place_of(found[at], table)] = found[at]
    for at in range(ends[-1]):
        place = place_of(found[at], table)
        if table[place] >= 0:
            sums[place] += np.exp(logs[at]) / trees
    filled = 0
    for at in chosen[:count]:
        place = place_of(found[at], table)
        if sums[place] > 0:
            filled = insert(labels, scores, filled, k, found[at], sums[place])
            sums[place] = 0  # it is there


@compiled_if_possible
def weigh(
    words: Ints, values: Floats, nodes: Ints, reached: NDArray[np.int64], starts: NDArray[np.int64],
    owners: Ints, ends: NDArray[np.int64], children: NDArray[Any], weights: Floats, margins: Floats,
) -> None:  # fmt: skip
    """Add to the margins of the children of nodes (N, C) what the words of a text are worth to them.

    The list of each word is read from the place that it was left at, which becomes that of the first of the nodes:
    those of the next level stand behind it. All places are found before what stands there is read.
    """
    order, pairs = np.empty(len(nodes), np.int64), 0
    for at in range(len(nodes)):
        rank = at
        while rank > 0 and nodes[order[rank - 1]] > nodes[at]:
            order[rank] = order[rank - 1]
            rank -= 1
        order[rank] = at
    found, last = np.empty(len(words) * len(nodes), np.int64), np.empty(len(words) * len(nodes), np.int64)
    owner, value = np.empty(len(found), np.int64), np.empty(len(found), np.float32)
    for term in range(len(words)):
        place, end = reached[term], starts[words[term] + 1]
        for rank in range(len(nodes)):
            node = nodes[order[rank]]
            place = first_from(owners, place, end, node)
            if rank == 0:
                reached[term] = place
            if place == end:
                break
            if owners[place] == node:
                prefetch(ends, place)
                found[pairs], owner[pairs], value[pairs] = place, order[rank], values[term]
                pairs += 1
    for pair in range(pairs):
        place = found[pair]
        found[pair], last[pair] = 0 if place == 0 else ends[place - 1], ends[place]
        prefetch(children, found[pair])
        prefetch(weights, found[pair])
    for pair in range(pairs):
        at, worth = owner[pair], value[pair]
        for entry in range(found[pair], last[pair]):
            margins[at, children[entry]] += weights[entry] * worth


@compiled_if_possible
def search(
    query_starts: NDArray[Any], query_words: Ints, query_values: Floats, first_query: int, roots: Ints,
    firsts: NDArray[np.int64], starts: NDArray[np.int64], owners: Ints, ends: NDArray[np.int64],
    children: NDArray[Any], weights: Floats, biases: Floats, below: Ints,
    beam: int, widest: int, labels: Ints, scores: Floats,
) -> None:  # fmt: skip
    """Find the best labels of queries `first_query` and further: labels (B, k), -1 where there are fewer, and scores.

    `below` is the node behind each child, or -1 - its label; a node has at most `widest` children.
    """
    margins, least, most = np.empty((beam, widest), np.float32), np.float32(-FAR), len(roots) * beam * widest
    nodes, logs = np.empty(beam, np.int32), np.empty(beam, np.float32)
    next_nodes, next_logs = np.empty(beam, np.int32), np.empty(beam, np.float32)
    found, found_logs, tree_ends = np.empty(most, np.int32), np.empty(most, np.float32), np.empty(len(roots), np.int64)
    for query in range(first_query, first_query + len(labels)):
        words = query_words[query_starts[query] : query_starts[query + 1]]
        values = query_values[query_starts[query] : query_starts[query + 1]]
        if len(words) == 0:
            continue  # nothing is known of the text
        seen, reached = 0, np.empty(len(words), np.int64)
        for tree in range(len(roots)):
            nodes[0], logs[0], wide = roots[tree], np.float32(0), 1
            for term in range(len(words)):
                reached[term] = starts[words[term]]
            while wide:
                for at in range(wide):
                    for child in range(firsts[nodes[at]], firsts[nodes[at] + 1], LINE):
                        prefetch(biases, child)
                        prefetch(below, child)
                for at in range(wide):
                    first = firsts[nodes[at]]
                    for child in range(firsts[nodes[at] + 1] - first):
                        margins[at, child] = biases[first + child]
                weigh(words, values, nodes[:wide], reached, starts, owners, ends, children, weights, margins)
                next_wide = 0
                for at in range(wide):
                    log, first = logs[at], firsts[nodes[at]]
                    for child in range(firsts[nodes[at] + 1] - first):
                        short = max(np.float32(1) - margins[at, child], np.float32(0))
                        own, under = log - short * short, below[first + child]
                        if under >= 0:
                            if own >= least and (next_wide < beam or own >= next_logs[beam - 1]):
                                next_wide = insert(next_nodes, next_logs, next_wide, beam, under, own)
                        elif seen < most:
                            found[seen], found_logs[seen] = -1 - under, own
                            seen += own >= least
                nodes, next_nodes = next_nodes, nodes
                logs, next_logs = next_logs, logs
                wide = next_wide
            tree_ends[tree] = seen
        place = query - first_query
        best(found, found_logs, tree_ends, labels[place], scores[place])


@compiled_if_possible
def score(
    query_words: Ints, query_values: Floats, paths: Ints, parents: Ints, chosen: NDArray[np.int64],
    firsts: NDArray[np.int64], starts: NDArray[np.int64], owners: Ints, ends: NDArray[np.int64],
    children: NDArray[Any], weights: Floats, biases: Floats, scores: Floats, spare: Floats,
) -> None:  # fmt: skip
    """Score chosen labels of one query: `paths` (T, L, depth) are the children on the way to each, -1 where it ends.

    `spare` becomes how far the margins on the way to each label lie above 1, which no score shows.
    """
    for at in range(len(chosen)):
        total, above = np.float32(0), np.float32(0)
        for tree in range(paths.shape[0]):
            log = np.float32(0)
            for depth in range(paths.shape[2]):
                child = paths[tree, chosen[at], depth]
                if child < 0:
                    break
                node = parents[child]
                inside, margin = child - firsts[node], biases[child]
                for term in range(len(query_words)):
                    word = query_words[term]
                    found = find(owners, starts[word], starts[word + 1], node)
                    if found >= 0:
                        for entry in range(0 if found == 0 else ends[found - 1], ends[found]):
                            if children[entry] == inside:
                                margin += weights[entry] * query_values[term]
                short = max(np.float32(1) - margin, np.float32(0))
                log -= short * short
                above += max(margin - np.float32(1), np.float32(0))
            if log >= -FAR:
                total += np.exp(log) / paths.shape[0]
        scores[at], spare[at] = total, above / paths.shape[0]
