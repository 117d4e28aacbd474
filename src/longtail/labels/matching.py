"""LABELS OF OTHER FILES → LABELS OF A MODEL: by name or raw id, where training and test data were read apart.

Labels that the model does not know stay: they come after its own, so that every metric counts them as missed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.dataset import Labels, Split
from longtail.errors import DataError
from longtail.types import LabelMatrix, Texts, counted, joined, label_matrix


@dataclass(frozen=True)
class Matched:
    """Points over the labels of a model, and the names of labels that it does not know."""

    split: Split
    unknown: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say what is unknown, "" if nothing is."""
        if not self.unknown:
            return ""
        some = ", ".join(map(repr, self.unknown[:3])) + (" …" if len(self.unknown) > 3 else "")
        return f"{counted(len(self.unknown), 'label')} of the data unknown to the model, counted as missed: {some}"


def match_labels(split: Split, labels: Labels) -> Matched:
    """Give the labels of points the numbers that a model gives them; points that have these are returned as they are.

    >>> from longtail.data.dataset import from_rows
    >>> test = from_rows({"test": (["a"], [[0, 1]])}, label_texts=["dog", "owl"]).test
    >>> matched = match_labels(test, Labels(2, Texts(["cat", "dog"])))
    >>> matched.split.targets.indices.tolist(), matched.unknown
    ([1, 2], ('owl',))
    """
    if same_labels(split.labels, labels):
        return Matched(split)
    places = _places(split.labels, labels)
    used = np.zeros(len(split.labels), np.bool_)
    used[split.targets.indices] = True
    if used.any() and (places[used] < 0).all():
        raise DataError(
            f"the model knows none of the {int(used.sum()):,} labels of the data",
            remedy="evaluate on data with the labels that it was trained for, by the same names or ids",
        )
    new = np.flatnonzero(used & (places < 0))
    wider, unknown = _wider(split.labels, labels, places, new), _names(split.labels, new)
    return Matched(_over(split, wider, places), unknown)


def extended(split: Split, labels: Labels) -> Split:
    """Give the labels of points the numbers that a model gives them; all that it does not know come after its own.

    >>> from longtail.data.dataset import from_rows
    >>> more = from_rows({"train": (["a"], [[0]])}, label_texts=["owl", "cat", "elk"]).train
    >>> wider = extended(more, Labels(2, Texts(["cat", "dog"])))
    >>> wider.labels.texts.tolist(), wider.targets.indices.tolist()
    (['cat', 'dog', 'owl', 'elk'], [2])
    """
    if len(split.labels) == len(labels) and same_labels(split.labels, labels):
        return replace(split, labels=labels)
    places = _places(split.labels, labels)
    return _over(split, _wider(split.labels, labels, places, np.flatnonzero(places < 0)), places)


def _over(split: Split, labels: Labels, places: NDArray[np.int64]) -> Split:
    """Give the labels of points other numbers."""
    targets, excluded = (_renumbered(matrix, places, len(labels)) for matrix in (split.targets, split.excluded))
    return replace(split, labels=labels, targets=targets, excluded=excluded)


def _wider(own: Labels, labels: Labels, places: NDArray[np.int64], new: NDArray[np.int64]) -> Labels:
    """Add new labels to those of a model, and note their numbers."""
    places[new] = len(labels) + np.arange(len(new))
    count, others, of = len(labels) + len(new), labels.alternatives, labels.alternatives_of
    if own.alternatives is not None and own.alternatives_of is not None:
        rows = np.flatnonzero(np.isin(own.alternatives_of.indices, new))  # other texts of labels that are new
        numbers = _renumbered(own.alternatives_of[rows], places, count)
        others = joined(others or Texts([]), own.alternatives.take(rows))
        of = numbers if of is None else sp.csr_array(sp.vstack([_resized(of, of.shape[0], count), numbers]))
    elif of is not None:
        of = _resized(of, of.shape[0], count)
    broader = None if labels.broader is None else _resized(labels.broader, count, count)
    if own.broader is not None:
        rows, columns = (places[side] for side in own.broader.nonzero())
        keep = (rows >= 0) & (columns >= 0)
        pairs = sp.csr_array((np.ones(int(keep.sum()), np.float32), (rows[keep], columns[keep])), shape=(count, count))
        broader = pairs if broader is None else sp.csr_array(pairs.maximum(broader))
    names, ids = _names(own, new), _names(replace(own, texts=own.ids), new)
    return Labels(
        count, _with(labels.texts, names), _with(labels.ids, ids if own.ids is not None else names),
        alternatives=others, alternatives_of=of, broader=broader,
    )  # fmt: skip


def _names(own: Labels, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Name labels by their texts, raw ids or numbers."""
    names = own.texts if own.texts is not None else own.ids
    return tuple(names[label] if names is not None else str(label) for label in labels.tolist())


def _resized(matrix: sp.csr_array, rows: int, columns: int) -> sp.csr_array:
    """Add empty rows and columns."""
    starts = np.pad(matrix.indptr, (0, rows - int(matrix.shape[0])), mode="edge")
    return sp.csr_array((matrix.data, matrix.indices, starts), shape=(rows, columns))


def narrowed(train: Split, validation: Split) -> tuple[Split, Split]:
    """Leave out the labels that no training point has, and the validation points that keep none: a small data set.

    >>> from longtail.data.dataset import from_rows
    >>> rows = {"train": (["a"], [[1]]), "test": (["b", "c"], [[0, 1], [0]])}
    >>> data = from_rows(rows, label_texts=["cat", "dog"])
    >>> small, others = narrowed(data.train, data.test)
    >>> small.labels.texts.tolist(), others.texts.tolist(), others.targets.indices.tolist()
    (['dog'], ['b'], [0])
    """
    used = np.flatnonzero(np.bincount(train.targets.indices, minlength=len(train.labels)))
    places = np.full(len(train.labels), -1, np.int64)
    places[used] = np.arange(len(used))
    labels = _chosen(train.labels, used, places)
    first, second = (
        replace(
            split,
            labels=labels,
            targets=_renumbered(split.targets, places, len(used)),
            excluded=_renumbered(split.excluded, places, len(used)),
            source=None,
        )
        for split in (train, validation)
    )
    return first, second.take(np.flatnonzero(np.diff(second.targets.indptr)))


def _chosen(labels: Labels, used: NDArray[np.int64], places: NDArray[np.int64]) -> Labels:
    """Take some labels, ascending, with the other texts that they have; `places` are their new numbers."""
    others = labels.alternatives_of
    rows = np.zeros(0, np.int64) if others is None else np.flatnonzero(places[others.indices] >= 0)
    return Labels(
        len(used),
        None if labels.texts is None else labels.texts.take(used),
        None if labels.ids is None else labels.ids.take(used),
        None if labels.features is None else labels.features[used],
        None if labels.alternatives is None else labels.alternatives.take(rows),
        None if others is None else _renumbered(others[rows], places, len(used)),
        None if labels.broader is None else _renumbered(labels.broader[used], places, len(used)),
    )


def padded(frequencies: NDArray[np.int64], labels: Labels) -> NDArray[np.int64]:
    """Give unknown labels no training points."""
    return np.pad(frequencies, (0, len(labels) - len(frequencies)))


def same_labels(own: Labels, labels: Labels) -> bool:
    """Return whether labels begin with those of the model, as far as their texts and ids tell."""
    if len(own) < len(labels):
        return False
    pairs = [(own.texts, labels.texts), (own.ids, labels.ids)]
    known = [(one[: len(labels)], other) for one, other in pairs if one is not None and other is not None]
    return all(one == other for one, other in known) and (bool(known) or len(own) == len(labels))


def _places(own: Labels, labels: Labels) -> NDArray[np.int64]:
    """Find the number of every label in the model, by raw id or name, -1 if it has none."""
    if own.texts is None and own.ids is None:
        raise DataError(
            f"the data has {len(own)} labels, the model {len(labels)}",
            remedy="give data with the labels that the model was trained for, or write labels by name",
        )
    by_text = {text: place for place, text in reversed(list(enumerate(labels.texts or ())))}
    by_id = {text: place for place, text in reversed(list(enumerate(labels.ids or ())))}
    columns = [(own.ids, by_id), (own.texts, by_text), (own.texts, by_id), (own.ids, by_text)]
    places = np.full(len(own), -1, np.int64)
    for names, known in columns:
        for place, name in enumerate(names or ()):
            if places[place] < 0:
                places[place] = known.get(name, -1)
    numbers = own.texts or Texts([])
    if (places < 0).all() and all(name.isdecimal() and name.isascii() and len(name) < 10 for name in numbers):
        found = np.array([int(name) for name in numbers], np.int64)  # names that are numbers, for want of a label file
        places = np.where(found < len(labels), found, -1)
    return places


def _with(names: Texts | None, more: tuple[str, ...]) -> Texts | None:
    """Add names."""
    return None if names is None else joined(names, Texts(list(more)))


def _renumbered(matrix: LabelMatrix, places: NDArray[np.int64], count: int) -> LabelMatrix:
    """Give the columns of a matrix other numbers; -1 drops one."""
    columns = places[matrix.indices]
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keep = columns >= 0
    starts = np.append(0, np.cumsum(np.bincount(rows[keep], minlength=matrix.shape[0])))
    return label_matrix(starts, columns[keep], (int(matrix.shape[0]), count), matrix.data[keep])
