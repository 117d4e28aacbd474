"""MODEL FOLDER → ANSWERS: a model as it is served. Memory-mapped; bag models need no torch.

Labels can be added and removed while it runs: changes go to a journal beside the model, which other processes that
serve the same folder take over by `refresh`.
"""

from __future__ import annotations

import logging
import os
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.artefact import open_artefact
from longtail.data.dataset import Labels
from longtail.data.tokens import WORD
from longtail.errors import DataError, LongtailError, ModelError
from longtail.explanations import Explanation, Reasons, name_of
from longtail.folder import REPLACED, labels_of, read_config, verify_files
from longtail.labels.journal import Added, Change, Removed
from longtail.model import Model, strings
from longtail.predictions import Groups, Predictor, Rules, finished, predict
from longtail.scorers.added import Additions, similar_labels
from longtail.search.inverted import Inverted
from longtail.signatures import Signature
from longtail.stored import STORE, hash_of, open_journal, open_store
from longtail.stores.shards import PartQuery
from longtail.types import Floats, Ints, LabelMatrix, Texts, TopK, counted, joined

log = logging.getLogger("longtail")
LARGE = 256 * 2**20  # bytes of a folder whose checksums are compared before it answers; a larger one answers meanwhile
MEASURED = ("dataset", "split", "points", "fingerprint", "date")  # what metrics were measured on
LENGTH = 10_000  # characters of a label text


@dataclass(frozen=True, eq=False)
class _Now:
    """What the changes so far have made of the labels; replaced as a whole, so that others may read meanwhile."""

    labels: Labels
    frequencies: NDArray[np.int64]
    removed: frozenset[int]
    predictor: Predictor


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

    def __init__(
        self, folder: Path, model: Model, config: Mapping[str, Any], signature: Signature | None = None
    ) -> None:
        self.folder, self.model, self._signature = folder, model, signature
        self.name, self.hash = folder.resolve().name, hash_of(config)
        self._files = {name: value for name, value in config["files"].items() if name not in REPLACED}
        store = os.environ.get(STORE)
        opened = open_artefact(folder, model, config) if not store else open_store(folder, model, config, store)
        self._vectors, self.served = opened
        self._scorer = replace(model.scorer, vectors=self._vectors)
        self._reasons = Reasons(model)
        self.damage: LongtailError | None = None
        self._now = _Now(model.labels, model.frequencies, frozenset(), Predictor(self._scorer, len(model.labels)))
        self._applied: Sequence[Change] = ()  # changes that `_now` shows
        self._journal = open_journal(folder, config, store, labels_of(config), lambda: labels_of(read_config(folder)))
        self.refresh()
        if signature is not None:
            signature.check_labels(self._journal.state)

    @classmethod
    def load(
        cls, path: str | Path, *, verify: bool | None = None, trusted: Sequence[str | Path] | None = None
    ) -> Index:
        """Open a model folder.

        Every file is compared with its checksum: before this returns, or, in a large folder unless `verify` is true,
        meanwhile; when a changed file is found, no further question is answered. `verify=False` trusts the folder.

        With `trusted` (public keys, or files of them) it must be signed by one of them, its changes of labels
        too; everything is compared before this returns, and labels cannot be changed.
        """
        folder = Path(path)
        config = read_config(folder)
        signature = None if trusted is None else Signature(folder, trusted)
        if signature is not None:
            signature.check_model(config)
            verify = True
        files: dict[str, str] = config["files"]
        if verify is None:
            sizes = [(folder / name).stat().st_size for name in files if (folder / name).is_file()]
            large = len(sizes) == len(files) and sum(sizes) > LARGE
        else:
            large = not verify
        if not large:
            verify_files(folder, files)
        index = cls(folder, Model.opened(folder, config), config, signature)
        if large and verify is None:
            threading.Thread(target=index._verify, name="longtail-verify", daemon=True).start()
        return index

    def verify(self) -> None:
        """Compare every file with its checksum; what is wrong is raised, and no further question is answered."""
        try:
            verify_files(self.folder, self._files)
        except LongtailError as reason:
            self.damage = reason
            raise

    def _verify(self) -> None:
        """Compare the checksums meanwhile."""
        try:
            self.verify()
        except LongtailError as reason:
            log.error("%s", reason)

    @property
    def labels(self) -> Labels:
        """All labels, also new and removed ones."""
        return self._now.labels

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """How many training points each label has."""
        return self._now.frequencies

    @property
    def removed(self) -> frozenset[int]:
        """The labels that are never predicted."""
        return self._now.removed

    def _sound(self) -> None:
        """Refuse to answer when a file was found changed."""
        if self.damage is not None:
            raise self.damage

    def __repr__(self) -> str:
        return f"Index({self.name}: {self.model.recipe.name}, {counted(len(self.labels), 'label')})"

    def predict(
        self,
        texts: Iterable[str],
        k: int = 5,
        *,
        threshold: float | str | None = None,
        allow: Sequence[int] | LabelMatrix | None = None,
        deny: Sequence[int] | LabelMatrix | None = None,
        exclude: LabelMatrix | None = None,
        groups: Groups | None = None,
        probabilities: bool = False,
    ) -> TopK:
        """Find the k best labels of each text.

        `allow` and `deny` are labels for all texts, or a matrix (N, L) with a row for each; `exclude` is such a matrix
        too, as splits have it. `groups` says which labels are much the same. `probabilities` replaces scores by the
        share of predictions with such a score that were right on held-out points. `threshold` drops what lies below: a
        number, or thresholds that held-out points tuned: "global", "bins" or "labels" for the best F1, "bins:0.9" for a
        precision of 0.9.
        """
        if k < 1:
            raise DataError(f"k is {k}", remedy="ask for at least one label")
        self._sound()
        queries, now = strings(texts), self._now
        chosen = self.model.chosen(threshold, now.frequencies, probabilities=probabilities)
        rules = Rules(allow, deny, exclude, groups, now.removed).checked(len(queries), len(now.labels))
        top = predict(now.predictor, queries, min(k, len(now.labels)), rules)
        return finished(top, now.labels.texts, **chosen)

    def nearest(self, asked: PartQuery) -> tuple[Ints, Floats]:
        """Find the best labels of vectors in a part of the trained labels, for a process that shares them."""
        self._sound()
        return asked.search(None if self.model.vectors is None else self.model.vectors.store)

    def explanation(self, text: str, label: str | int) -> Explanation:
        """Return why a text gets a label, given as number, raw id or text."""
        self._sound()
        now = self._now
        return self._reasons.explanation(text, label, now.predictor, now.labels, now.removed)

    def explain(self, text: str, label: str | int) -> dict[str, Any]:
        """Return why a text gets a label, in plain values."""
        return self.explanation(text, label).to_dict()

    def describe(self) -> dict[str, Any]:
        """Return recipe, sizes, data and metrics."""
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
            "dimensions": None if self._vectors is None else self._vectors.store.dim,
            "voices": {
                voice.part: weight for voice, weight in zip(model.recipe.voices, model.recipe.weights, strict=True)
            },
            "probabilities": model.probabilities is not None,
            "thresholds": model.held_out is not None,
            "index": None if self.served is None else asdict(self.served),
            "metrics": {name: value for name, value in model.metrics.items() if "@" in name},
            "evaluated": {name: model.metrics.get(name) for name in MEASURED} if model.metrics else None,
            "examples": self._reasons.to_try(model.metrics, self.removed),
        }

    def label(self, label: int) -> dict[str, Any]:
        """Return what is known of a label: frequency, bin, neighbours, examples."""
        self._sound()
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
        self._sound()
        words, now = WORD.findall(text.lower()), self._now
        if now.labels.texts is None or not words or limit < 1:
            return []
        lower = pc.utf8_lower(now.labels.texts.array)
        mask = np.ones(len(now.labels), np.bool_)
        for word in words:
            mask &= np.asarray(pc.match_substring(lower, word), np.bool_)
        found = np.flatnonzero(mask)
        lengths = np.asarray(pc.utf8_length(lower.take(found)))
        order = found[np.argsort(lengths, kind="stable")]
        return [label for label in order.tolist() if label not in now.removed][:limit]

    def add(self, texts: Sequence[str], ids: Sequence[str] | None = None) -> list[int]:
        """Add labels for good and return their numbers; the journal has them before this returns."""
        self._changeable()
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
            if any(unicodedata.category(letter) == "Cc" for letter in text):
                raise DataError(f"{text!r} holds control characters", remedy="remove them")
        if ids is not None and self.model.labels.ids is None:
            raise DataError("the labels of this model have no raw ids", remedy="leave the ids out")

        def make(changes: Sequence[Change]) -> Added:
            """Choose or check the raw ids, when no other process can add any."""
            own = ids if ids is None else self._fresh(ids, changes)
            if own is None and self.model.labels.ids is not None:
                own = self._free_ids(len(clean), changes)
            return Added(tuple(clean), None if own is None else tuple(own))

        self._journal.append(make)
        self._apply(self._journal.changes)
        first = len(self.labels) - len(clean)
        return list(range(first, len(self.labels)))

    def _fresh(self, ids: Sequence[str], changes: Sequence[Change]) -> Sequence[str]:
        """Return raw ids; refuse those that are there already, or given twice."""
        taken = {*self._changed(changes)[1]} | self._trained(ids)
        twice = [own for own, count in Counter(ids).items() if count > 1 or own in taken]
        if twice:
            raise DataError(f"the raw id {twice[0]!r} is there already", remedy="give every label its own")
        return ids

    def _trained(self, ids: Sequence[str]) -> set[str]:
        """Return those raw ids that trained labels have."""
        known = self.model.labels.ids
        if known is None:
            return set()
        mask = pc.is_in(asked := pa.array(ids, pa.large_string()), known.array)
        return {*asked.filter(mask).to_pylist()}

    def _free_ids(self, count: int, changes: Sequence[Change]) -> list[str]:
        """Choose raw ids for new labels: their numbers, or further ones where these are taken."""
        texts, ids, _ = self._changed(changes)
        taken, number, free = {*ids}, len(self.model.labels) + len(texts), list[str]()
        while len(free) < count:
            block = [str(place) for place in range(number, number + count)]
            trained = self._trained(block)
            free += [own for own in block if own not in taken and own not in trained]
            number += count
        return free[:count]

    def _changed(self, changes: Sequence[Change]) -> tuple[list[str], list[str], set[int]]:
        """List the texts and raw ids that changes added, and the labels that they removed."""
        texts, ids, removed, first = list[str](), list[str](), set[int](), len(self.model.labels)
        for change in changes:
            if isinstance(change, Added):
                ids += change.ids or [str(first + len(texts) + place) for place in range(len(change.texts))]
                texts += change.texts
            else:
                removed |= set(change.labels)
        return texts, ids, removed

    def remove(self, labels: Sequence[int]) -> None:
        """Take labels away for good: they keep their numbers and are never predicted."""
        self._changeable()
        self.refresh()
        self._existing(labels)
        chosen = tuple(int(label) for label in labels if label not in self.removed)  # or undo would bring nothing back
        if chosen:
            self._journal.append(lambda changes: self._present(chosen, changes))
            self._apply(self._journal.changes)

    def _present(self, labels: tuple[int, ...], changes: Sequence[Change]) -> Removed:
        """Remove labels, unless another process has just undone the addition of one."""
        if max(labels) >= len(self.model.labels) + len(self._changed(changes)[0]):
            raise DataError(f"label {max(labels)} has just been undone", remedy="nothing was removed")
        return Removed(labels)

    def undo(self) -> None:
        """Take back the last addition or removal."""
        self._changeable()
        self._journal.undo()
        self._apply(self._journal.changes)

    def refresh(self) -> bool:
        """Take over what another process changed; cheap when nothing did."""
        self._journal.refresh()
        changed = self._journal.changes != self._applied  # also what it read when it refused a change of ours
        if changed:
            self._apply(self._journal.changes)
        return changed

    def _changeable(self) -> None:
        """Refuse to change what was signed as it is."""
        if self._signature is not None:
            raise DataError(
                f"{self.name} is used as it was signed, and its labels with it",
                remedy="change them without trusted keys, then sign it again: longtail sign",
            )

    def _existing(self, labels: Sequence[int]) -> None:
        """Refuse labels that do not exist."""
        for label in labels:
            if not 0 <= label < len(self.labels):
                raise DataError(f"there is no label {label}", remedy=f"use 0 to {len(self.labels) - 1}")

    def _similar(self, texts: Sequence[str]) -> sp.csr_array:
        """Find trained labels with similar texts."""
        return similar_labels(self.model.words, self._names, texts)

    @cached_property
    def _names(self) -> Inverted:
        """The texts of the trained labels, to search by words."""
        return Inverted.build(self.model.words.bag(self.model.labels.texts or []))

    def _apply(self, changes: Sequence[Change]) -> None:
        """Make the changes that are in force visible, all at once."""
        if self._signature is not None:
            self._signature.check_labels(self._journal.state)
        model, self._applied = self.model, changes
        texts, ids, removed = self._changed(changes)
        count = len(model.labels) + len(texts)
        if removed and max(removed) >= count:
            raise ModelError(f"{self._journal.path}: removes label {max(removed)} of {count}; restore the file")
        near = None if model.labels.texts is None else self._similar
        added = Additions.of(texts, model.words, self._vectors, near, model.scale) if texts else None
        labels = model.labels
        if texts and labels.texts is not None:
            raw = None if labels.ids is None else joined(labels.ids, Texts(ids))
            labels = replace(labels, count=count, texts=joined(labels.texts, Texts(texts)), ids=raw)
        frequencies = np.concatenate([model.frequencies, np.zeros(len(texts), np.int64)])
        self._now = _Now(labels, frequencies, frozenset(removed), Predictor(self._scorer, len(model.labels), added))
