"""MODEL FOLDER → ANSWERS: a model as it is served. Memory-mapped; bag models need no torch.

Labels can be added and removed while it runs: changes go to a journal beside the model, which other processes that
serve the same folder take over by `refresh`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from longtail.additions import Additions
from longtail.artefact import open_artefact
from longtail.data.tokens import WORD
from longtail.errors import DataError, LongtailError, ModelError
from longtail.explanations import Explanation, Reasons, carried, name_of
from longtail.labels.journal import Added, Change, Journal, Removed
from longtail.model import Model, read_config, verify_files
from longtail.predictions import Groups, Ranker, Rules, predict
from longtail.types import LabelMatrix, Texts, TopK, joined

LARGE = 256 * 2**20  # bytes of a folder whose checksums are compared before it answers; a larger one answers meanwhile
RANKED = 100  # labels among which an explained label is looked for
LENGTH = 10_000  # characters of a label text


class Index:
    """A model folder that answers; `Index.load` opens it.

    >>> from longtail.data.dataset import from_rows
    >>> from longtail.pipeline import fit
    >>> import tempfile
    >>> data = from_rows({"train": (["red cat", "old dog"], [[0], [1]])}, label_texts=["cat", "dog"])
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> fit("knn", data.train).save(folder)
    >>> index = Index.load(folder)
    >>> index.add(["blue parrot"])
    [2]
    >>> index.predict(["a parrot"], k=1)[0][0][:2]
    (2, 'blue parrot')
    """

    def __init__(self, folder: Path, model: Model, config: Mapping[str, Any]) -> None:
        self.folder, self.model = folder, model
        self.name = folder.resolve().name
        self._files = dict(config["files"])
        self._search, self.served = open_artefact(folder, model, config)
        self._ranker = Ranker(model, self._search)
        self._reasons = Reasons(model)
        self._damage: LongtailError | None = None
        self.labels = model.labels
        self.frequencies: NDArray[np.int64] = model.frequencies
        self.removed: frozenset[int] = frozenset()
        self._journal = Journal(folder, _identity(config), lambda: _identity(read_config(folder)))
        self.refresh()

    @classmethod
    def load(cls, path: str | Path, *, verify: bool | None = None) -> Index:
        """Open a model folder.

        Every file is compared with its checksum: before this returns, or, in a large folder unless `verify` is true,
        meanwhile; when a changed file is found, no further question is answered. `verify=False` trusts the folder.
        """
        folder = Path(path)
        config = read_config(folder)
        files: dict[str, str] = config["files"]
        if verify is None:
            try:
                large = sum((folder / name).stat().st_size for name in files) > LARGE
            except OSError as reason:
                raise ModelError(f"{reason.filename}: {reason.strerror}; copy the folder again") from None
        else:
            large = not verify
        if not large:
            verify_files(folder, files)
        index = cls(folder, Model.load(folder, verify=False), config)
        if large and verify is None:
            threading.Thread(target=index._verify, name="longtail-verify", daemon=True).start()
        return index

    def _verify(self) -> None:
        """Compare the checksums, and remember what is wrong."""
        try:
            verify_files(self.folder, self._files)
        except LongtailError as reason:
            self._damage = reason

    def __repr__(self) -> str:
        return f"Index({self.name}: {self.model.recipe.name}, {len(self.labels):,} labels)"

    def predict(
        self,
        texts: Iterable[str],
        k: int = 5,
        *,
        threshold: float | None = None,
        allow: Sequence[int] | LabelMatrix | None = None,
        deny: Sequence[int] | LabelMatrix | None = None,
        exclude: LabelMatrix | None = None,
        groups: Groups | None = None,
        probabilities: bool = False,
    ) -> TopK:
        """Find the k best labels of each text.

        `allow` and `deny` are labels for all texts, or a matrix (N, L) with a row for each; `exclude` is such a matrix
        too, as splits have it. `groups` says which labels are much the same. `probabilities` replaces scores by the
        share of predictions with such a score that were right on held-out points. `threshold` drops what lies below.
        """
        if isinstance(texts, str):
            raise DataError("predict got one text", remedy="give a list of texts: predict([text])")
        if k < 1:
            raise DataError(f"k is {k}", remedy="ask for at least one label")
        if self._damage is not None:
            raise self._damage
        asked = list(texts)
        rules = Rules(allow, deny, exclude, groups, self.removed).checked(len(asked), len(self.labels))
        top = predict(self._ranker, asked, min(k, len(self.labels)), rules)
        labels, scores = top.labels, top.scores
        if probabilities:
            scores = np.where(labels < 0, -np.inf, self._curve()(scores)).astype(np.float32)
        if threshold is not None:
            low = scores < threshold
            labels, scores = np.where(low, -1, labels).astype(np.int32), np.where(low, -np.inf, scores)
        return TopK(labels, scores.astype(np.float32), self.labels.texts)

    def _curve(self) -> Any:
        """Return what turns scores into probabilities."""
        if self.model.probabilities is None:
            raise ModelError(
                f"{self.name}: no points were held out when it was trained, so scores are not probabilities; "
                "train a recipe that chooses on held-out points (knn, frugal)"
            )
        return self.model.probabilities

    def explanation(self, text: str, label: int) -> Explanation:
        """Tell why a text gets a label."""
        self._existing([label])
        model, chosen = self.model, np.array([label])

        def score(asked: str) -> float:
            own, scores = self._ranker.within(asked, chosen)
            return float(scores[0]) if len(own) else 0.0

        found, _ = self._ranker.one(text, RANKED)
        ranks = [place for place in found.tolist() if place not in self.removed]
        value = score(text)
        return Explanation(
            text=text,
            label=label,
            label_text=name_of(self.labels, label),
            score=round(value, 6),
            probability=None if model.probabilities is None else float(model.probabilities(np.array([value]))[0]),
            rank=ranks.index(label) + 1 if label in ranks else None,
            frequency=int(self.frequencies[label]),
            bin=self._reasons.bin(label),
            words=carried(text, score),
            points=self._reasons.near_points(text, label),
            label_texts=self._reasons.near_labels(text, self.labels),
            neighbours=self._reasons.neighbours(label, self.labels),
        )

    def explain(self, text: str, label: int) -> dict[str, Any]:
        """Tell why a text gets a label, in plain values."""
        return self.explanation(text, label).to_dict()

    def describe(self) -> dict[str, Any]:
        """Tell recipe, sizes, data and metrics."""
        model = self.model
        return {
            "name": self.name,
            "recipe": model.recipe.name,
            "dataset": model.dataset,
            "labels": len(self.labels),
            "added": len(self.labels) - len(model.labels),
            "removed": len(self.removed),
            "points": model.points,
            "words": len(model.words),
            "dimensions": None if self._search is None else int(self._search.labels.rows.shape[1]),
            "blend": model.recipe.blend,
            "probabilities": model.probabilities is not None,
            "index": None if self.served is None else asdict(self.served),
            "metrics": {name: value for name, value in model.metrics.items() if isinstance(value, int | float)},
        }

    def label(self, label: int) -> dict[str, Any]:
        """Tell what is known of a label: frequency, bin, neighbours, examples."""
        self._existing([label])
        texts = () if self.model.examples is None else self.model.examples.texts
        return {
            "id": label,
            "text": name_of(self.labels, label),
            "raw_id": None if self.labels.ids is None else self.labels.ids[label],
            "frequency": int(self.frequencies[label]),
            "bin": self._reasons.bin(label),
            "added": label >= len(self.model.labels),
            "removed": label in self.removed,
            "neighbours": [asdict(entry) for entry in self._reasons.neighbours(label, self.labels)],
            "examples": [texts[int(row)] for row in self._reasons.examples(label)[:5]],
        }

    def find(self, text: str, limit: int = 20) -> list[int]:
        """Find labels whose text holds all the words, shortest first; the last word may be unfinished."""
        words = WORD.findall(text.lower())
        if self.labels.texts is None or not words or limit < 1:
            return []
        lower = pc.utf8_lower(self.labels.texts.array)
        held = np.ones(len(self.labels), np.bool_)
        for word in words:
            held &= np.asarray(pc.match_substring(lower, word), np.bool_)
        found = np.flatnonzero(held)
        lengths = np.asarray(pc.utf8_length(lower.take(found)))
        order = found[np.argsort(lengths, kind="stable")]
        return [label for label in order.tolist() if label not in self.removed][:limit]

    def add(self, texts: Sequence[str], ids: Sequence[str] | None = None) -> list[int]:
        """Add labels for good and return their numbers; the journal has them before this returns."""
        clean = [" ".join(text.split()) for text in texts]
        if self.model.labels.texts is None:
            raise DataError("the labels of this model have no texts", remedy="new labels need a model that reads them")
        if not clean or not all(0 < len(text) <= LENGTH for text in clean):
            raise DataError("a new label has no text, or too much", remedy=f"give 1 to {LENGTH} characters each")
        if ids is not None and len(ids) != len(clean):
            raise DataError(f"{len(ids)} ids for {len(clean)} labels", remedy="give one each, or none")
        for text in [*clean, *(ids or ())]:
            if text.encode("utf-8", "replace").decode() != text:
                raise DataError(f"{text!r} is not valid Unicode", remedy="remove lone surrogates")
        self._journal.append(Added(tuple(clean), None if ids is None else tuple(ids)))
        self._apply(self._journal.changes)
        first = len(self.labels) - len(clean)
        return list(range(first, len(self.labels)))

    def remove(self, labels: Sequence[int]) -> None:
        """Take labels away for good: they keep their numbers and are never predicted."""
        chosen = tuple(int(label) for label in labels)
        self.refresh()
        self._existing(chosen)
        if chosen:
            self._journal.append(Removed(chosen), self._present(chosen))
            self._apply(self._journal.changes)

    def _present(self, labels: Sequence[int]) -> Callable[[Sequence[Change]], None]:
        """Refuse labels whose addition another process has just undone."""

        def check(changes: Sequence[Change]) -> None:
            added = sum(len(change.texts) for change in changes if isinstance(change, Added))
            if max(labels) >= len(self.model.labels) + added:
                raise DataError(f"label {max(labels)} has just been undone", remedy="nothing was removed")

        return check

    def undo(self) -> None:
        """Take back the last addition or removal."""
        self._journal.undo()
        self._apply(self._journal.changes)

    def refresh(self) -> bool:
        """Take over what another process changed; cheap when nothing did."""
        changed = self._journal.refresh()
        if changed:
            self._apply(self._journal.changes)
        return changed

    def _existing(self, labels: Sequence[int]) -> None:
        """Refuse labels that do not exist."""
        for label in labels:
            if not 0 <= label < len(self.labels):
                raise DataError(f"there is no label {label}", remedy=f"use 0 to {len(self.labels) - 1}")

    def _apply(self, changes: Sequence[Change]) -> None:
        """Make the changes that are in force visible, all at once."""
        model = self.model
        texts: list[str] = []
        ids: list[str] = []
        removed: set[int] = set()
        for change in changes:
            if isinstance(change, Added):
                texts += change.texts
                ids += change.ids or [str(len(model.labels) + len(ids) + place) for place in range(len(change.texts))]
            else:
                removed |= set(change.labels)
        count = len(model.labels) + len(texts)
        if removed and max(removed) >= count:
            raise ModelError(f"{self._journal.path}: removes label {max(removed)} of {count}; restore the file")
        added = Additions.of(texts, model.words, self._search, model.recipe) if texts else None
        held = model.labels
        if texts and held.texts is not None:
            raw = None if held.ids is None else joined(held.ids, Texts(ids))
            self.labels = replace(held, count=count, texts=joined(held.texts, Texts(texts)), ids=raw)
        else:
            self.labels = held
        self.frequencies = np.concatenate([model.frequencies, np.zeros(len(texts), np.int64)])
        self.removed, self._ranker = frozenset(removed), Ranker(model, self._search, added)


def _identity(config: Mapping[str, Any]) -> str:
    """Tell which labels a folder has: what the numbers of a journal mean."""
    return str(config["files"].get("labels.parquet", ""))
