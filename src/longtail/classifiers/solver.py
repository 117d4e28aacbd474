"""POINTS × NODES → SPARSE ROWS: one linear classifier for every child of a node, compiled.

Each is a support vector machine with a squared hinge loss, solved by dual coordinate descent with shrinking. The points
of a node are copied once for all its children, with their words renumbered, so that what a solver reads stays in the
cache. A target y costs y as a positive and 1 − y as a negative.

References: [LIBLINEAR] Hsieh et al. 2008, algorithms 1 and 3; [Parabel].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.machine import compiled
from longtail.types import Floats, Ints

SHUFFLED = 4096  # instances of a block
NEVER = -10.0  # the bias of a child without points: no search comes to it
Found = tuple[NDArray[np.int64], Ints, Floats, Floats]  # ends of rows, words, weights, biases


@compiled
def solve(
    starts: Ints, words: Ints, values: Floats, lengths: Floats, rows: Ints, signs: Floats, costs: Floats, count: int,
    weights: Floats, iterations: int, tolerance: float, seed: int,
) -> np.floating[Any]:  # fmt: skip
    """Fit `weights` (zeros) to the first `count` instances: places `rows` of points, their signs and costs.

    `lengths` are the squared lengths of points, the constant for the bias included. The instances must stand in no
    particular order: they are only shuffled within blocks, since what lies far apart in memory takes much longer to
    read. Returns the bias.
    """
    alpha = np.zeros(count, np.float32)
    order = np.arange(count, dtype=np.int32)
    state = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x2545F4914F6CDD1D)
    bias, active, highest = np.float32(0), count, np.float32(np.inf)
    for _ in range(iterations):
        largest, smallest = np.float32(-np.inf), np.float32(np.inf)
        kept = 0
        for begin in range(0, active, SHUFFLED):
            size = min(SHUFFLED, active - begin)
            for last in range(size - 1, 0, -1):
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                other = int(state % np.uint64(last + 1))
                order[begin + last], order[begin + other] = order[begin + other], order[begin + last]
            for place in range(begin, begin + size):
                entry = order[place]
                start, end = starts[rows[entry]], starts[rows[entry] + 1]
                margin = bias
                for at in range(start, end):
                    margin += weights[words[at]] * values[at]
                sign, diagonal = signs[entry], np.float32(0.5) / costs[entry]
                gradient = sign * margin - np.float32(1) + diagonal * alpha[entry]
                if alpha[entry] == 0 and gradient > 0:
                    if gradient > highest:  # it is right by far: leave it out until all others are
                        continue
                    largest, smallest = max(largest, np.float32(0)), min(smallest, np.float32(0))
                else:
                    largest, smallest = max(largest, gradient), min(smallest, gradient)
                    before = alpha[entry]
                    alpha[entry] = max(before - gradient / (lengths[rows[entry]] + diagonal), np.float32(0))
                    step = (alpha[entry] - before) * sign
                    if step != 0:
                        for at in range(start, end):
                            weights[words[at]] += step * values[at]
                        bias += step
                order[kept] = entry
                kept += 1
        active = kept
        if largest - smallest <= tolerance:
            if active == count:
                break
            for place in range(count):
                order[place] = place
            active, highest = count, np.float32(np.inf)
        else:
            highest = largest if largest > 0 else np.float32(np.inf)
    return bias


@compiled
def solve_children(
    bag_starts: NDArray[Any], bag_words: Ints, bag_values: Floats, vocabulary: int,
    items: NDArray[np.int64], group_starts: NDArray[Any], group_rows: Ints,
    target_starts: NDArray[Any], target_rows: Ints, target_values: Floats,
    excluded_starts: NDArray[Any], excluded_rows: Ints,
    cost: float, iterations: int, tolerance: float, prune: float, seed: int,
) -> Found:  # fmt: skip
    """Solve for children of nodes: each of `items` (I, 3) is a node, its first child here and the one behind the last.

    `group_rows` are the points of each node, `target_rows` the positives of each child, `excluded_rows` the points that
    a child must not learn from. Weights smaller than `prune` are dropped.
    """
    children = 0
    for item in range(len(items)):
        children += items[item, 2] - items[item, 1]
    ends, biases = np.zeros(children, np.int64), np.zeros(children, np.float32)
    found_words, found_values, found = np.empty(1024, np.int32), np.empty(1024, np.float32), 0
    local, place_of = np.full(vocabulary, -1, np.int32), np.full(len(bag_starts) - 1, -1, np.int32)
    child_at = 0
    for item in range(len(items)):
        node, first, behind = items[item, 0], items[item, 1], items[item, 2]
        count = int(group_starts[node + 1] - group_starts[node])
        entries = 0
        for at in range(group_starts[node], group_starts[node + 1]):
            row = group_rows[at]
            entries += bag_starts[row + 1] - bag_starts[row]
        starts, words, values = (
            np.zeros(count + 1, np.int32),
            np.empty(entries, np.int32),
            np.empty(entries, np.float32),
        )
        names, width, filled = np.empty(min(entries, vocabulary), np.int32), 0, 0
        lengths = np.ones(count, np.float32)
        mixed = group_rows[group_starts[node] : group_starts[node + 1]].copy()
        state = np.uint64(seed + node) + np.uint64(0x9E3779B97F4A7C15)  # the same in whatever block the node stands
        for last in range(count - 1, 0, -1):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            other = int(state % np.uint64(last + 1))
            mixed[last], mixed[other] = mixed[other], mixed[last]
        for place in range(count):
            row = mixed[place]
            place_of[row] = place
            for at in range(bag_starts[row], bag_starts[row + 1]):
                word = bag_words[at]
                if local[word] < 0:
                    local[word] = width
                    names[width] = word
                    width += 1
                words[filled], values[filled] = local[word], bag_values[at]
                lengths[place] += bag_values[at] * bag_values[at]
                filled += 1
            starts[place + 1] = filled
        weights = np.zeros(width, np.float32)
        rows, signs, costs = (
            np.empty(2 * count, np.int32),
            np.empty(2 * count, np.float32),
            np.empty(2 * count, np.float32),
        )
        target = np.zeros(count, np.float32)
        for child in range(first, behind):
            positives = 0
            for at in range(excluded_starts[child], excluded_starts[child + 1]):
                if place_of[excluded_rows[at]] >= 0:
                    target[place_of[excluded_rows[at]]] = -1
            for at in range(target_starts[child], target_starts[child + 1]):
                if place_of[target_rows[at]] >= 0:
                    target[place_of[target_rows[at]]] = target_values[at]
                    positives += 1
            if positives:
                instances = 0
                for place in range(count):
                    if target[place] > 0:
                        rows[instances], signs[instances], costs[instances] = place, 1, cost * target[place]
                        instances += 1
                    if 0 <= target[place] < 1:
                        rows[instances], signs[instances], costs[instances] = place, -1, cost * (1 - target[place])
                        instances += 1
                biases[child_at] = solve(
                    starts, words, values, lengths, rows, signs, costs, instances, weights, iterations,
                    tolerance, seed + child,
                )  # fmt: skip
                if found + width > len(found_words):
                    more_words = np.empty(2 * (found + width), np.int32)
                    more_values = np.empty(2 * (found + width), np.float32)
                    more_words[:found], more_values[:found] = found_words[:found], found_values[:found]
                    found_words, found_values = more_words, more_values
                for word in range(width):
                    if abs(weights[word]) >= prune:
                        found_words[found], found_values[found] = names[word], weights[word]
                        found += 1
                weights[:] = 0
            else:
                biases[child_at] = NEVER
            for at in range(excluded_starts[child], excluded_starts[child + 1]):
                if place_of[excluded_rows[at]] >= 0:
                    target[place_of[excluded_rows[at]]] = 0
            for at in range(target_starts[child], target_starts[child + 1]):
                if place_of[target_rows[at]] >= 0:
                    target[place_of[target_rows[at]]] = 0
            ends[child_at] = found
            child_at += 1
        for word in range(width):
            local[names[word]] = -1
        for at in range(group_starts[node], group_starts[node + 1]):
            place_of[group_rows[at]] = -1
    return ends, found_words[:found].copy(), found_values[:found].copy(), biases
