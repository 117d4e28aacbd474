"""A model that behaves like an index, small enough to read: what the service is tested with."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np

from longtail.data.dataset import Labels
from longtail.errors import DataError
from longtail.types import Texts, TopK


def words(text):
    return set(re.findall(r"\w+", text.casefold()))


class Double:
    """Scores a label by the share of its words that the text contains."""

    def __init__(self, name, texts, frequencies=None, *, probable=False, examples=()):
        self.name, self.probable = name, probable
        self.examples = examples  # (text, labels) to try
        self.labels = Labels(len(texts), Texts(texts))
        self.frequencies = np.asarray(frequencies if frequencies is not None else range(len(texts))[::-1])
        self.removed: set[int] = set()
        self.history: list[tuple] = []
        self.calls: list[int] = []  # texts of each call
        self.gate = None  # an event that predictions wait for

    damage = None
    hash = "5f" * 16

    def nearest(self, asked):
        raise DataError("this model has no label vectors of that dimension", remedy="ask the model that made them")

    def verify(self):
        pass

    @classmethod
    def load(cls, folder: Path):
        lines = (Path(folder) / "config.json").read_text().splitlines()
        if not lines:
            raise DataError("empty", file=folder)
        return cls(lines[0], lines[1:])

    def predict(self, texts, k=5, *, threshold=None, allow=None, deny=None, probabilities=False):
        if probabilities and not self.probable:
            raise DataError("scores are not probabilities", remedy="train a recipe that holds points out")
        self.calls.append(len(texts))
        if self.gate is not None:
            assert self.gate.wait(10)
        label_words = [words(text) for text in self.labels.texts]
        allowed = set(range(len(label_words))) - self.removed - set(deny or ())
        allowed &= set(range(len(label_words)) if allow is None else allow)
        labels, scores = np.full((len(texts), k), -1, np.int32), np.full((len(texts), k), -np.inf, np.float32)
        for row, text in enumerate(texts):
            if "explode" in text:
                raise RuntimeError("boom")
            if "sleep" in text:
                time.sleep(60)
            query = words(text)
            ranked = sorted(
                (-len(query & label_words[label]) / len(label_words[label] or " "), label) for label in allowed
            )
            limit = 0.9 if isinstance(threshold, str) else threshold or 0
            best = [(label, -score) for score, label in ranked if score < 0 and -score >= limit][:k]
            for rank, (label, score) in enumerate(best):
                labels[row, rank], scores[row, rank] = label, score
        return TopK(labels, scores, self.labels.texts)

    def explain(self, text, label):
        shared = sorted(words(text) & words(self.labels.texts[label]))
        return {"label": label, "words": [{"word": word, "weight": 1.0} for word in shared]}

    def describe(self):
        return {
            "recipe": "double",
            "labels": len(self.labels),
            "metrics": {"P@1": np.float32(0.5)},
            "probabilities": self.probable,
            "thresholds": self.probable,
            "examples": [
                {
                    "text": text,
                    "labels": [{"id": label, "text": self.labels.texts[label]} for label in own],
                    "held_out": True,
                }
                for text, own in self.examples
            ],
        }

    def label(self, label):
        near = [other for other in range(len(self.labels)) if other != label][:3]
        return {
            "neighbours": [{"id": other, "text": self.labels.texts[other], "score": 0.5} for other in near],
            "examples": [f"an example of {self.labels.texts[label]}"],
        }

    def find(self, text, limit):
        query = words(text)
        return [label for label, name in enumerate(self.labels.texts) if query <= words(name)][:limit]

    def add(self, texts, ids=None):
        self.history.append((self.labels, self.frequencies, set(self.removed)))
        count = len(self.labels)
        self.labels = Labels(count + len(texts), Texts([*self.labels.texts, *texts]))
        self.frequencies = np.concatenate([self.frequencies, np.zeros(len(texts), np.int64)])
        return list(range(count, len(self.labels)))

    def remove(self, labels):
        self.history.append((self.labels, self.frequencies, set(self.removed)))
        self.removed |= set(labels)

    def undo(self):
        if not self.history:
            raise DataError("there is no change to take back")
        self.labels, self.frequencies, self.removed = self.history.pop()

    def refresh(self):
        return False
