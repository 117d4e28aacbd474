from __future__ import annotations

import gzip
import os
from pathlib import Path

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
    assert [len(some.ids) for some in blocks] == [BLOCK, 1]
    assert blocks[1].ids == [BLOCK + 1]
    assert next(read_queries([b'{"text": "\\ud800x"}'], "q")).texts == ["?x"]


def queries(path: Path, content: bytes) -> tuple[list[object], list[str], DataError | None]:
    """Read a file as `longtail predict` does; return ids, texts and the error that ended it."""
    path.write_bytes(content)
    ids: list[object] = []
    texts: list[str] = []
    with path.open("rb") as lines:
        try:
            for some in read_queries(lines, "q.txt"):
                ids += some.ids
                texts += some.texts
        except DataError as reason:
            return ids, texts, reason
    return ids, texts, None


def test_a_byte_order_mark_is_dropped_once(tmp_path):
    mark = b"\xef\xbb\xbf"
    (block,) = read_queries([mark + b'{"text": "a"}\n', b"b"], "q")
    assert (block.ids, block.texts, block.own) == ([1, 2], ["a", "b"], [None, None])
    assert queries(tmp_path / "q", mark + b"a\n" + mark + b"b")[1] == ["a", "\ufeffb"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_file_is_read_like_its_lines(tmp_path, end):
    content = b"a\r\n\n" + b"long " * 200_000 + b"\nlast" + end
    expected = [text for some in read_queries(content.splitlines(keepends=True), "q") for text in some.texts]
    assert queries(tmp_path / "q", content)[:2] == ([1, 2, 3, 4], expected)
    assert queries(tmp_path / "q", b"") == ([], [], None)


def test_a_block_of_a_file_is_not_too_large(tmp_path):
    (tmp_path / "q").write_bytes(b"\n" * (3 * BLOCK))
    with (tmp_path / "q").open("rb") as lines:
        sizes = [len(some.ids) for some in read_queries(lines, "q")]
    assert sum(sizes) == 3 * BLOCK and max(sizes) <= BLOCK


def test_gzip_is_unpacked_and_damage_costs_no_earlier_answer(tmp_path):
    rows = b"".join(b'{"id": "%d", "text": "text %d"}\n' % (n, n) for n in range(9000))
    packed = gzip.compress(rows[:150_000]) + gzip.compress(rows[150_000:])
    ids, texts, error = queries(tmp_path / "q.gz", packed)
    assert error is None and len(ids) == 9000 and texts[-1] == "text 8999"
    ids, texts, error = queries(tmp_path / "q.gz", packed[:-100])
    assert error is not None and "gzip file is damaged" in str(error) and error.remedy
    assert 4000 < len(ids) < 9000 and texts[4000] == "text 4000"


def test_the_lines_before_a_bad_one_are_answered(tmp_path):
    ids, texts, error = queries(tmp_path / "q", b"a\nb\n\xff\nc\n")
    assert (ids, texts) == ([1, 2], ["a", "b"]) and error is not None and error.line == 3
    blocks = read_queries([b"a", b"{"], "q")
    assert next(blocks).texts == ["a"]
    with pytest.raises(DataError, match="q:2: not JSON"):
        next(blocks)


def test_a_pipe_is_answered_without_waiting_for_more():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines, os.fdopen(writing, "wb", buffering=0) as sink:
        blocks = read_queries(lines, "pipe")
        sink.write(b"one\n")
        assert (block := next(blocks)).ids == [1] and block.texts == ["one"]
        sink.write(b"two\nthr")
        assert (block := next(blocks)).ids == [2] and block.texts == ["two"]
        sink.write(b"ee\nfour")
        assert (block := next(blocks)).ids == [3] and block.texts == ["three"]
        sink.close()
        assert [some.texts for some in blocks] == [["four"]]


@given(st.binary(max_size=60))
def test_any_bytes_give_texts_or_a_data_error(raw):
    try:
        for block in read_queries(raw.split(b"\n"), "q"):
            assert all(isinstance(text, str) for text in block.texts)
    except DataError:
        pass


def test_the_label_that_a_text_itself_is():
    find = {3: 3, "B07": 1}.__getitem__
    lines = [b"plain", b'{"text": "a", "own": 3}', b'{"text": "b", "own": "B07"}', b'{"text": "c", "own": null}']
    assert next(read_queries(lines, "q", find)).own == [None, 3, 1, None]
    assert next(read_queries(lines, "q")).own == [None] * 4

    def lost(label):
        raise DataError(f"there is no label {label!r}", remedy="give another")

    blocks = read_queries(lines, "q.jsonl", lost)
    assert next(blocks).texts == ["plain"]
    with pytest.raises(DataError, match=r"q\.jsonl:2: there is no label 3; give another"):
        next(blocks)
    for bad in (b"[1]", b"true", b"1.5"):
        with pytest.raises(DataError, match="q:1: own"):
            list(read_queries([b'{"text": "a", "own": ' + bad + b"}"], "q", find))
