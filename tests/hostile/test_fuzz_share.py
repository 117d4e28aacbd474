"""A share of what `make fuzz` tries: every damaged input is used or refused in one line."""

from __future__ import annotations

from collections import Counter

import pytest
from hostile.fuzz import KINDS, tried

SHARE = {"bodies": 1500, "readers": 300, "files": 300, "models": 200, "arguments": 60}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_inputs_are_used_or_refused(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("hostile.inputs.RECIPES", ("knn",))
    ends = Counter(tried(kind, 18, 0, SHARE[kind], tmp_path, lambda _: None))
    assert set(ends) == {"used", "refused"}, {end: count for end, count in ends.items() if end.startswith("wrong")}
    assert min(ends.values()) >= SHARE[kind] // 100  # the damage is neither harmless nor total
