"""MODEL + NEW POINTS → POINTS TO TRAIN ON: those that the model was trained on, replayed, and then the new ones.

Labels keep their numbers; new ones come after them. A text that comes again has the labels of the new data; where those
are partial, as feedback is, it has both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.card import is_trained
from longtail.data.dataset import Dataset, Labels, Split, chosen_split, need_data
from longtail.errors import DataError
from longtail.labels.matching import extended, match_labels
from longtail.model import Model
from longtail.parts import Earlier
from longtail.types import LabelMatrix, Texts, counted, joined, no_pairs

log = logging.getLogger("longtail")


def continued_points(model: Model, new: Split) -> Split:
    """Return the points of a model and new ones as one training set over all labels."""
    known = model.examples
    if known is None:
        raise DataError(
            "the model keeps no training points, and what it has learnt would be forgotten without them",
            remedy="train on the old and the new points together",
        )
    new = extended(new, model.labels)
    texts, width = new.need_texts("training"), len(new.labels)
    targets = new.targets
    if new.partial:
        targets = _with_known(targets, texts, known.targets, known.texts)
    again = {*texts}
    rows = np.flatnonzero(np.fromiter((text not in again for text in known.texts), np.bool_, len(known.texts)))
    excluded = no_pairs(known.targets.shape) if known.excluded is None else known.excluded
    return Split(
        "train",
        new.labels,
        _stacked(known.targets[rows], targets, width),
        _stacked(excluded[rows], new.excluded, width),
        joined(known.texts.take(rows), texts),
        dataset=model.dataset,
        columns=new.columns or model.columns,
    )


def _with_known(targets: LabelMatrix, texts: Texts, before: LabelMatrix, known: Texts) -> LabelMatrix:
    """Add the labels that texts had before."""
    places = {text: place for place, text in enumerate(known)}
    rows = np.fromiter((places.get(text, -1) for text in texts), np.int64, len(texts))
    old = sp.csr_array((before.data, before.indices, before.indptr), shape=(before.shape[0], targets.shape[1]))
    mask = sp.csr_array(((rows >= 0).astype(np.float32), (np.arange(len(rows)), np.maximum(rows, 0))),
                        shape=(len(rows), before.shape[0]))  # fmt: skip
    return sp.csr_array(targets.maximum(mask @ old), dtype=np.float32)


def earlier(model: Model) -> Earlier | None:
    """Return what the weights of a training can start from."""
    return None if model.vectors is None else Earlier(model.vectors.arrays(), model.tokenizer)


def seen(model: Model, points: Split) -> NDArray[np.bool_]:
    """Return which points have a text that a model was trained on, as far as it keeps them: (N,)."""
    if model.examples is None or points.texts is None:
        return np.zeros(len(points), np.bool_)
    return np.asarray(pc.is_in(points.texts.array, value_set=model.examples.texts.array), np.bool_)


def unseen(model: Model, points: Split) -> Split:
    """Leave out points whose texts a model was trained on."""
    points.need_texts("a comparison")
    return points.take(np.flatnonzero(~seen(model, points)))


def to_measure(
    model: Model, data: Dataset | Split, split: str | None = None, others: Iterable[Model] = ()
) -> tuple[Split, list[str]]:  # fmt: skip
    """Take the points to measure models of the same labels on, and what has to be said of them.

    Of a data set these are the named split, or the test points. A file by itself is a test set, without the points that
    one of the models was trained on, if any are left.
    """
    points = data if isinstance(data, Split) else data[split or chosen_split(data.splits)]
    matched = match_labels(points, model.labels)
    notes = [matched.describe()] if matched.unknown else []
    if isinstance(data, Split):
        return matched.split, notes
    known = np.logical_or.reduce([seen(one, points) for one in (model, *others)])
    alone, count = split is None and [*data.splits] == ["train"], int(known.sum())
    note = f"{count:,} of {counted(len(points), 'point')} have a text that the model was trained on"
    if alone and not known.all():
        notes += [f"{note}, and are left out"] if count else []
        return matched.split.take(np.flatnonzero(~known), "test"), notes
    if is_trained(count, len(points)):
        notes.append(f"{note}: figures show what it knows by heart, not how good it is")
    return matched.split, notes


def points_for(model: Model, data: Dataset | Split, others: Iterable[Model] = ()) -> Split:
    """Take the points to measure models on, and log what has to be said of them."""
    need_data(data)
    points, notes = to_measure(model, data, others=others)
    for note in notes:
        log.warning("%s", note)
    return points


def some_points(model: Model, labels: Labels, most: int, seed: int = 0) -> Split | None:
    """Draw points that a model was trained on, over the labels of one that continues it, to see what is forgotten."""
    known = model.examples
    if known is None or len(known.texts) == 0:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(len(known.texts))[:most])
    targets = _stacked(known.targets[rows], no_pairs((0, len(labels))), len(labels))
    excluded = no_pairs(targets.shape)
    if known.excluded is not None:
        excluded = _stacked(known.excluded[rows], no_pairs((0, len(labels))), len(labels))
    return Split("points before", labels, targets, excluded, known.texts.take(rows), dataset=model.dataset)


def _stacked(above: sp.csr_array, below: sp.csr_array, width: int) -> LabelMatrix:
    """Put points over fewer labels above others."""
    wider = sp.csr_array((above.data, above.indices, above.indptr), shape=(above.shape[0], width))
    return sp.csr_array(sp.vstack([wider, below], format="csr"), dtype=np.float32)
