"""A model whose label vectors are handed over to a store, for the tests of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import board, small
from typer.testing import CliRunner

from longtail.cli import app
from longtail.errors import ModelError
from longtail.index import Index
from longtail.pipeline import fit

TEXTS = board(30).texts.tolist()


def handed_over(run: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Index, Any]:
    """Train a model, hand it over, and open it from the store: with the answers that it gave before."""
    fit(small("frugal", blend=(1.0, 0.0)), board(200)).save(run)
    expected = Index.load(run).predict(TEXTS, 3)
    monkeypatch.setenv("LONGTAIL_STORE", address)
    with pytest.raises(ModelError, match=r"not in the store .* longtail index"):
        Index.load(run)
    told = CliRunner().invoke(app, ["index", str(run), "--store", address, "--recall", "0.9"])
    assert told.exit_code == 0 and "recall 1.0000 measured on" in told.stderr, told.output
    index = Index.load(run)
    np.testing.assert_array_equal(index.predict(TEXTS, 3).labels, expected.labels)
    return index, expected
