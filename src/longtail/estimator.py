"""TEXTS + INDICATORS → A SCIKIT-LEARN CLASSIFIER, for pipelines and grid searches. Needs the extra `sklearn`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.auto.portfolio import Auto
from longtail.data.dataset import Labels, Split
from longtail.errors import BadArgument, MissingExtra
from longtail.pipeline import fit
from longtail.recipe import Recipe, find_recipe
from longtail.records import overridden
from longtail.types import Floats, LabelMatrix, Texts, TopK, contains, label_matrix, no_pairs

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

CANDIDATES = 100  # labels of a text that get a probability
Names: TypeAlias = Sequence[str] | Mapping[Any, str]


class LongtailClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a recipe to texts and their labels.

    `recipe` is a name or a Recipe, or "auto", which chooses one by trials within a `budget` of seconds. `settings`
    changes it as `--set` does: {"training.epochs": 5}. `label_texts` are the
    texts of the labels: one for each column of a label matrix, or by name; a name that no point has is a label too.
    `predict` returns the best `top` labels of each text whose probability is at least `threshold`, or whose score is at
    least a threshold that held-out points tuned: "global", "bins" or "labels" for F1, "bins:0.9" for that precision.

    Probabilities are calibrated on validation points that the fit holds out. Where it holds none out (few points, or a
    recipe with nothing to choose) they are a softmax over the scores of a text: good for order only.

    Labels are a matrix (sparse or dense, one column each), or a list of names for each text. For cross-validation of
    lists give `cv=KFold(…)`: scikit-learn itself can only split matrices. `score` is P@1.

    >>> model = LongtailClassifier("knn", top=1).fit(["red cat", "old dog"], [["cat"], ["dog"]])
    >>> model.predict(["my cat"]).toarray(), model.classes_.tolist()
    (array([[1, 0]]), ['cat', 'dog'])
    """

    def __init__(
        self,
        recipe: str | Recipe = "frugal",
        *,
        settings: Mapping[str, Any] | None = None,
        label_texts: Names | None = None,
        top: int = 5,
        threshold: float | str = 0.0,
        seed: int = 0,
        budget: float | str | None = None,
    ) -> None:
        self.recipe = recipe
        self.settings = settings
        self.label_texts = label_texts
        self.top = top
        self.threshold = threshold
        self.seed = seed
        self.budget = budget

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, texts: Iterable[str], y: Any = None, *, label_texts: Names | None = None) -> Self:
        """Fit to texts and their labels; label texts given here come before those of the constructor."""
        points = _texts(texts)
        if y is None:
            raise BadArgument(
                "requires y to be passed, but the target y is None", remedy="give the labels of the texts"
            )
        known = self.label_texts if label_texts is None else label_texts
        self.classes_, targets = _targets(y, known)
        if targets.shape[0] != len(points):
            raise BadArgument(
                f"{len(points)} texts and labels for {targets.shape[0]}", remedy="give labels to each text"
            )
        labels = Labels(len(self.classes_), _label_texts(self.classes_, known, named=not _is_matrix(y)))
        train = Split("train", labels, targets, no_pairs(targets.shape), points, dataset="data")
        self.model_ = fit(self._recipe(), train)
        return self

    def predict(self, texts: Iterable[str]) -> sp.csr_array:
        """Return an indicator matrix (N, L): 1 for the best `top` labels that reach the threshold."""
        topk, probabilities = self._topk(texts, self.top)
        mask = topk.labels >= 0
        if isinstance(self.threshold, str):
            model = self.model_
            limits = model.chosen(self.threshold, model.frequencies, probabilities=False)["limits"]
            mask &= topk.scores >= limits[topk.labels]
        else:
            mask &= probabilities >= self.threshold
        return _matrix(topk, np.ones_like(probabilities), mask, len(self.classes_), np.int64)

    def predict_proba(self, texts: Iterable[str]) -> sp.csr_array:
        """Return the probabilities (N, L) of the best labels of each text; all others are 0."""
        topk, probabilities = self._topk(texts, CANDIDATES)
        return _matrix(topk, probabilities, topk.labels >= 0, len(self.classes_), np.float32)

    def score(self, texts: Iterable[str], y: Any) -> float:
        """Return P@1: the share of the texts whose best label is right."""
        topk, _ = self._topk(texts, 1)
        if _is_matrix(y):
            targets = _targets(y, None)[1]
        else:
            columns = {name: column for column, name in enumerate(self.classes_.tolist())}
            targets = _rows([[name for name in row if name in columns] for row in y], columns)
        return float(contains(targets, topk.labels).mean()) if len(topk) else 0.0

    def _recipe(self) -> Recipe | Auto:
        """Find the recipe and apply the settings."""
        if self.recipe == Auto.name:
            return Auto.of(self.budget, [*(self.settings or {}).items(), ("seed", self.seed)])
        if self.budget is not None:
            raise BadArgument("a budget beside a recipe", remedy='leave it out, or take the recipe "auto"')
        recipe = overridden(find_recipe(self.recipe), (self.settings or {}).items())
        return recipe.override("seed", self.seed)

    def _topk(self, texts: Iterable[str], k: int) -> tuple[TopK, Floats]:
        """Predict the k best labels, with their probabilities (N, k)."""
        check_is_fitted(self, "model_")
        candidates = min(max(k, CANDIDATES), len(self.classes_))
        top = self.model_.predict(_texts(texts), candidates)
        mask = top.labels >= 0
        scores = np.where(mask, top.scores, -np.inf)
        if self.model_.probabilities is not None:
            probabilities = self.model_.probabilities(scores)
        else:
            best = np.where(mask.any(1), scores.max(1, initial=-np.inf), 0)
            probabilities = np.exp(scores - best[:, None])  # exp(-inf) is 0
            probabilities /= np.maximum(probabilities.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        k = min(k, candidates)
        return TopK(top.labels[:, :k], top.scores[:, :k], top.names), probabilities[:, :k].astype(np.float32)


def _texts(texts: Iterable[str]) -> Texts:
    """Take a column of texts, from a list, an array or a table."""
    if isinstance(texts, str):
        raise BadArgument("one text was given", remedy="give a list of texts")
    shape = getattr(texts, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] == 1:
        texts = np.asarray(texts)[:, 0]  # a table with one column
    elif shape is not None and len(shape) != 1:
        raise BadArgument(f"texts of shape {tuple(shape)}", remedy="give one text for each point")
    column = list(texts)
    wrong = next((entry for entry in column if not isinstance(entry, str)), None)
    if wrong is not None:
        raise BadArgument(f"{wrong!r} is not a text", remedy="give strings; numbers are no texts")
    return Texts([str(entry) for entry in column])


def _is_matrix(labels: Any) -> bool:
    """Return whether labels are a matrix, not lists of names."""
    return sp.issparse(labels) or (getattr(labels, "ndim", 0) == 2 and np.asarray(labels).dtype.kind in "biuf")


def _targets(labels: Any, known: Names | None) -> tuple[NDArray[Any], LabelMatrix]:
    """Read the labels of all texts as (classes, targets)."""
    if _is_matrix(labels):
        matrix = sp.csr_array(labels, dtype=np.float32)
        if matrix.nnz and not 0 <= matrix.data.min() <= matrix.data.max() <= 1:
            raise BadArgument(
                "a label matrix holds values outside 0 … 1", remedy="1 where a text has the label, else 0"
            )
        points, width = (int(size) for size in matrix.shape)
        return np.arange(width), label_matrix(matrix.indptr, matrix.indices, (points, width), matrix.data)
    rows = [row if isinstance(row, Iterable) and not isinstance(row, str) else None for row in labels]
    if any(row is None for row in rows):
        raise BadArgument("labels are neither a matrix nor lists of names", remedy='write [["cat", "red"], ["dog"]]')
    lists = [list(row) for row in rows if row is not None]
    names = {name for row in lists for name in row} | (set(known) if isinstance(known, Mapping) else set())
    try:
        classes = sorted(names)
    except TypeError:
        raise BadArgument("label names of several types", remedy="use strings or whole numbers, not both") from None
    return np.array(classes), _rows(lists, {name: column for column, name in enumerate(classes)})


def _rows(lists: list[list[Any]], columns: Mapping[Any, int]) -> LabelMatrix:
    """Turn lists of names into a label matrix."""
    starts = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
    labels = np.fromiter((columns[name] for row in lists for name in row), np.int64)
    return label_matrix(starts, labels, (len(lists), len(columns)))


def _label_texts(classes: NDArray[Any], known: Names | None, *, named: bool) -> Texts | None:
    """Return the text of every label; without label texts, names (if `named`) are their own texts."""
    if known is None:
        return Texts(str(name) for name in classes.tolist()) if named else None
    if isinstance(known, Mapping):
        missing = next((name for name in classes.tolist() if name not in known), None)
        if missing is not None:
            raise BadArgument(f"label {missing!r} has no text", remedy="give every label a text")
        return Texts(known[name] for name in classes.tolist())
    if len(known) != len(classes):
        raise BadArgument(f"{len(known)} label texts for {len(classes)} labels", remedy="give one for each label")
    return Texts(list(known))


def _matrix(top: TopK, values: NDArray[Any], mask: NDArray[np.bool_], width: int, dtype: type) -> sp.csr_array:
    """Scatter values (N, k) into a sparse matrix (N, L)."""
    cells = np.nonzero(mask)[0], top.labels[mask]
    matrix: sp.csr_array = sp.csr_array((values[mask].astype(dtype), cells), shape=(len(top), width))
    matrix.sort_indices()
    return matrix
