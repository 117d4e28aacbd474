"""A small fixed corpus with overlapping words, and what every recipe answers on it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import longtail as lt
from longtail.data.dataset import Split, from_rows
from longtail.types import TopK

K = 10


def corpus(points: int = 300) -> Split:
    """Make points of two labels each, whose words are partly those of the label texts."""
    draw = np.random.default_rng(11)
    themes, kinds = [f"theme{n}" for n in range(12)], [f"kind{n}" for n in range(40)]
    names = [f"{kinds[n]} {themes[n % 12]} {'guide' if n % 3 else 'Reference'}" for n in range(40)]
    texts, rows = [], []
    for _ in range(points):
        label = int(draw.integers(0, 40))
        words = [kinds[label], themes[label % 12], f"filler{draw.integers(0, 30)}", "the", f"verb{draw.integers(0, 8)}"]
        kept = draw.random(5) < 0.8
        texts.append(" ".join(word for word, keep in zip(words, kept, strict=True) if keep) or "empty one")
        rows.append(sorted({label, (label + 12) % 40} if draw.random() < 0.5 else {label}))
    return from_rows({"train": (texts, rows)}, label_texts=names).train


def sized(points: int, labels: int) -> Split:
    """Make points of eight words and up to three labels, words and labels by a long tail."""
    draw = np.random.default_rng(0)
    words = [[int(place) for place in points * row**3] for row in draw.random((points + labels, 8))]
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    rows = [sorted({int(label) for label in labels * row**2}) for row in draw.random((points, 3))]
    return from_rows({"train": (texts[:points], rows)}, label_texts=texts[points:]).train


def questions() -> list[str]:
    """List texts to ask: known words, none, unknown ones, capitals, and some training texts."""
    return ["kind3 theme3", "", "unseen words only", "KIND7 verb1 filler3", *corpus(120).texts]


def answers(recipe: lt.Recipe) -> dict[str, TopK]:
    """Fit, save, open, and predict: the model and the index, one text and a batch."""
    model, texts = lt.fit(recipe, corpus()), questions()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "run")
        index = lt.Index.load(Path(folder) / "run")
        return {
            "model, one text": model.predict(texts[:1], K),
            "model, a batch": model.predict(texts, K),
            "index, one text": index.predict(texts[:1], K),
            "index, few texts": index.predict(texts[:30], K),
            "index, a batch": index.predict(texts, K),
        }


def plain(topk: TopK, digits: int = 6) -> dict[str, Any]:
    """Write predictions as JSON values; a place without a label has neither score."""
    scores = [
        [float(f"{score:.{digits}g}") for score in row[labels >= 0]]
        for row, labels in zip(topk.scores, topk.labels, strict=True)
    ]
    return {"labels": [row[row >= 0].tolist() for row in topk.labels], "scores": scores}
