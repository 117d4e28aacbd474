from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.data.queries import BLOCK, read_queries
from longtail.errors import DataError


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff", "q.txt:2: not UTF-8"),
        (b'{"text": 3}', "no string under"),
        (b'{"text"', "not JSON"),
        (b'{"a":' * 5000, "not JSON"),
        (b'{"text": "a", "id": [1]}', "string or a whole number"),
    ],
)
def test_a_bad_line_is_named(line, message):
    with pytest.raises(DataError, match=message):
        list(read_queries([b"fine", line], "q.txt"))


def test_blocks_and_lone_surrogates():
    blocks = list(read_queries([b"a"] * (BLOCK + 1), "q.txt"))
    assert [len(ids) for ids, _ in blocks] == [BLOCK, 1]
    assert blocks[1][0] == [BLOCK + 1]
    assert next(read_queries([b'{"text": "\\ud800x"}'], "q"))[1] == ["?x"]


@given(st.binary(max_size=60))
def test_any_bytes_give_texts_or_a_data_error(raw):
    try:
        for _, texts in read_queries(raw.split(b"\n"), "q"):
            assert all(isinstance(text, str) for text in texts)
    except DataError:
        pass
