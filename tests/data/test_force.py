"""`force` replaces what longtail itself wrote, whatever the format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from longtail.data.dataset import from_rows
from longtail.data.formats import FORMATS, load, write
from longtail.types import Texts, label_matrix


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.writable])
def test_every_format_can_be_written_again(tmp_path, name):
    data = from_rows(
        {"train": (["red cat", "old dog"], [[0], [1]]), "test": (["cat"], [[0]])}, label_texts=["cat", "dog"]
    )
    excluded = label_matrix(np.array([0, 1, 1]), np.array([1]), (2, 2))
    train = replace(data.train, ids=Texts(["a", "b"]), excluded=excluded)
    data = data.with_splits(train, data.test)
    for _ in range(2):
        write(data, tmp_path / name, name, force=True)
    assert load(tmp_path / name).fingerprint == data.fingerprint


@pytest.mark.parametrize("name", ["csv", "tsv"])
def test_a_text_that_begins_like_fasttext_stays_in_its_table(tmp_path, name):
    data = from_rows({"train": (["__label__7 x"], [[0]]), "test": (["a"], [[0]])}, label_texts=["cat"])
    write(data, tmp_path / name, name)
    assert load(tmp_path / name).fingerprint == data.fingerprint


def test_json_that_talks_of_columns_is_json(tmp_path):
    data = from_rows({"train": (["a,text,labels,b"], [[0]]), "test": (["a"], [[0]])}, label_texts=["cat"])
    write(data, tmp_path / "j", "jsonl")
    assert load(tmp_path / "j").fingerprint == data.fingerprint
