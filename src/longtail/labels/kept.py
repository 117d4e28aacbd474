"""LABELS ↔ MODEL FOLDER: texts, raw ids and frequencies, other texts, and which labels are broader.

`labels.parquet` has a row for each label. Vocabularies have two files more: `alternatives.arrow` with other texts of
labels, and `vocabulary.safetensors`, which says whose they are and which labels are broader than others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from longtail.arrays import matrix_arrays, matrix_of
from longtail.data.dataset import Labels
from longtail.errors import ModelError
from longtail.files import read_arrays, read_texts, regular, text_column, write_arrays, write_texts
from longtail.packed import parquet_table

FILE, OTHERS, VOCABULARY = "labels.parquet", "alternatives.arrow", "vocabulary.safetensors"
CODECS = ("SNAPPY", "UNCOMPRESSED")  # that labels are written with: the others can make gigabytes of nothing


def save_labels(folder: Path, labels: Labels, frequencies: NDArray[np.int64]) -> None:
    """Write labels into a model folder."""
    columns = {"frequency": pa.array(frequencies)}
    for name, texts in (("text", labels.texts), ("id", labels.ids)):
        if texts is not None:
            columns[name] = texts.array
    pq.write_table(pa.table(columns), folder / FILE)
    arrays = {} if labels.broader is None else matrix_arrays("broader", labels.broader)
    if labels.alternatives is not None and labels.alternatives_of is not None:
        write_texts(folder / OTHERS, {"text": labels.alternatives})
        arrays |= matrix_arrays("alternatives", labels.alternatives_of)
    if arrays:
        write_arrays(folder / VOCABULARY, arrays)


def load_labels(folder: Path, count: int) -> tuple[Labels, NDArray[np.int64]]:
    """Open what `save_labels` wrote: so many labels, and how many training points each has."""
    regular(folder / FILE)
    table = parquet_table(folder / FILE, rows=count, codecs=CODECS, error=ModelError)  # rows as in arrays
    columns = {name: text_column(table[name]) for name in ("text", "id") if name in table.column_names}
    arrays = read_arrays(folder / VOCABULARY) if (folder / VOCABULARY).exists() else {}
    others = of = broader = None
    if (folder / OTHERS).exists():
        others = read_texts(folder / OTHERS)["text"]
        of = matrix_of(arrays, "alternatives", len(others), count, low=0, high=1)
    if "broader.shape" in arrays:
        broader = matrix_of(arrays, "broader", count, count, low=0, high=1)
    labels = Labels(
        count, columns.get("text"), columns.get("id"), alternatives=others, alternatives_of=of, broader=broader
    )
    return labels, _counts(table["frequency"])


def _counts(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Read whole numbers; `to_numpy` would import pandas where there is one."""
    if column.type != pa.int64() or column.null_count:
        raise ModelError(f"labels.parquet: frequencies are {column.type}, not whole numbers; train again")
    parts = [np.frombuffer(part.buffers()[1], np.int64)[part.offset :][: len(part)] for part in column.chunks]
    counts = np.concatenate([np.zeros(0, np.int64), *parts])
    if len(counts) and not 0 <= counts.min() <= counts.max() < 2**53:
        raise ModelError("labels.parquet: there are frequencies below zero or above all sense; train again")
    return counts
