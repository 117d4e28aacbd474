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
from longtail.types import Floats, Ints

FAR = 30.0  # a logarithm of a probability so far below zero is nothing


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
def insert(labels: Ints, scores: Floats, count: int, most: int, label: int, score: float) -> int:
    """Insert into a list that descends by score, of at most `most`; the smaller of equals first. Returns its length."""
    if count == most:
        last = most - 1
        if score < scores[last] or (score == scores[last] and label > labels[last]):
            return count
        place = last
    else:
        place = count
        count += 1
    while place > 0 and (score > scores[place - 1] or (score == scores[place - 1] and label < labels[place - 1])):
        labels[place], scores[place] = labels[place - 1], scores[place - 1]
        place -= 1
    labels[place], scores[place] = label, score
    return count


@compiled_if_possible
def search(
    query_starts: NDArray[Any], query_words: Ints, query_values: Floats, first_query: int, roots: Ints,
    firsts: NDArray[np.int64], starts: NDArray[np.int64], owners: Ints, ends: NDArray[np.int64],
    children: Ints, weights: Floats, biases: Floats, below: Ints,
    beam: int, widest: int, sums: Floats, labels: Ints, scores: Floats,
) -> None:  # fmt: skip
    """Find the best labels of queries `first_query` and further: labels (B, k), -1 where there are fewer, and scores.

    `below` is the node behind each child, or -1 - its label; a node has at most `widest` children. `sums` (L,) are
    zeros, and are zeros again afterwards.
    """
    margins = np.zeros(widest, np.float32)
    nodes, logs = np.empty(beam, np.int32), np.empty(beam, np.float32)
    next_nodes, next_logs = np.empty(beam, np.int32), np.empty(beam, np.float32)
    touched, k = np.empty(min(len(roots) * beam * widest, len(sums)), np.int32), labels.shape[1]
    for place in range(len(labels)):
        query = first_query + place
        seen = 0
        if query_starts[query] == query_starts[query + 1]:
            continue  # nothing is known of the text
        for tree in range(len(roots)):
            nodes[0], logs[0], wide = roots[tree], np.float32(0), 1
            while wide:
                next_wide = 0
                for at in range(wide):
                    node, log = nodes[at], logs[at]
                    first, size = firsts[node], firsts[node + 1] - firsts[node]
                    margins[:size] = biases[first : first + size]
                    for term in range(query_starts[query], query_starts[query + 1]):
                        word = query_words[term]
                        found = find(owners, starts[word], starts[word + 1], node)
                        if found >= 0:
                            value = query_values[term]
                            for entry in range(0 if found == 0 else ends[found - 1], ends[found]):
                                margins[children[entry]] += weights[entry] * value
                    for child in range(size):
                        short = max(np.float32(1) - margins[child], np.float32(0))
                        own = log - short * short
                        if own < -FAR:
                            continue
                        under = below[first + child]
                        if under >= 0:
                            next_wide = insert(next_nodes, next_logs, next_wide, beam, under, own)
                        else:
                            label = -1 - under
                            if sums[label] == 0:
                                if seen == len(touched):
                                    continue
                                touched[seen] = label
                                seen += 1
                            sums[label] += np.exp(own) / len(roots)
                nodes, next_nodes = next_nodes, nodes
                logs, next_logs = next_logs, logs
                wide = next_wide
        count = 0
        for at in range(seen):
            label = touched[at]
            count = insert(labels[place], scores[place], count, k, label, sums[label])
            sums[label] = 0


@compiled_if_possible
def score(
    query_words: Ints, query_values: Floats, paths: Ints, parents: Ints, chosen: NDArray[np.int64],
    firsts: NDArray[np.int64], starts: NDArray[np.int64], owners: Ints, ends: NDArray[np.int64],
    children: Ints, weights: Floats, biases: Floats, scores: Floats, spare: Floats,
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
