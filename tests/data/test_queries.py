from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.data.dataset import from_rows
from longtail.data.formats import FORMATS, load, write
from longtail.data.formats.columns import Reading
from longtail.data.queries import BLOCK, Queries, open_feed, read_queries
from longtail.errors import DataError


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff", "q.txt:2: not UTF-8"),
        (b'{"text": 3}', "no string under"),
        (b'{"text"', "not JSON"),
        (b'{"a":' * 5000, "not JSON"),
        (b'{"text": "a", "id": [1]}', "string or a whole number"),
        (b'{"title": []}', "no string under"),
        (b'{"title": [1], "content": "a"}', "no string under"),
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


def fed(path: Path, **more: object) -> Queries:
    """Read a file as `longtail predict` does, all blocks together."""
    with open_feed(path, **more) as feed:  # type: ignore[arg-type]
        blocks = list(feed.blocks)
    rows = [row for block in blocks for row in block.rows()]
    ids, own = [i for block in blocks for i in block.ids], [o for block in blocks for o in block.own]
    return Queries(ids, [text for block in blocks for text in block.texts], own, rows)


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.writable])
def test_every_format_gives_the_texts_that_training_reads(tmp_path, name):
    texts = ['the "old" dog', "red, cat; 5|7", "", "été"]
    data = from_rows({"train": (["x"], [[1]]), "test": (texts, [[0], [0, 1], [1], [1]])}, label_texts=["dog", "cat"])
    write(data, tmp_path / name, name)
    assert fed(tmp_path / name, split="test").texts == load(tmp_path / name).test.texts.tolist() == texts
    if name != "arrow":
        assert fed(tmp_path / name).texts == texts  # the test split by default


def test_the_labels_of_a_table_are_no_part_of_a_text(tmp_path):
    (tmp_path / "a.csv").write_text('sku,title,tags\n1,"red cat",SECRET\n2,"two\nlines",SECRET\n')
    block = fed(tmp_path / "a.csv")
    assert block.texts == ["red cat", "two lines"]
    assert block.kept[0] == {"sku": "1", "title": "red cat", "tags": "SECRET"}
    pq.write_table(pa.table({"title": ["red cat"], "tags": [["SECRET"]], "n": [7]}), tmp_path / "a.parquet")
    block = fed(tmp_path / "a.parquet")
    assert block.texts == ["red cat"] and block.rows() == [{"title": "red cat", "tags": ["SECRET"], "n": 7}]
    (tmp_path / "a.jsonl").write_text('{"headline": "red cat", "tags": ["SECRET"]}\n')
    assert fed(tmp_path / "a.jsonl").texts == ["red cat"]
    (tmp_path / "a.txt").write_text("__label__SECRET red cat\n")
    assert fed(tmp_path / "a.txt").texts == ["red cat"]
    (tmp_path / "one.csv").write_text("title\nred cat\n")
    assert fed(tmp_path / "one.csv").texts == ["red cat"]
    (tmp_path / "m.txt").write_text("1 2 3\n0 1:1.5\n")
    with pytest.raises(DataError, match="no texts are read from xc"):
        fed(tmp_path / "m.txt")
    (tmp_path / "m.txt").write_text("1 2 3\nred cat\n")
    assert fed(tmp_path / "m.txt").texts == ["1 2 3", "red cat"]


def test_title_and_content_are_joined_as_in_training(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"title": "red", "content": "cat"}\n')
    assert fed(tmp_path / "a.jsonl").texts == ["red cat"]
    (tmp_path / "a.csv").write_text("title,content,id\nred,cat,q7\n")
    block = fed(tmp_path / "a.csv")
    assert block.texts == ["red cat"] and block.ids == ["q7"]
    assert fed(tmp_path / "a.csv", reading=Reading.of("content")).texts == ["cat"]
    with pytest.raises(DataError, match="no column 'body'"):
        fed(tmp_path / "a.csv", reading=Reading.of("body"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
def test_encodings_are_read_in_a_stream(tmp_path, encoding, packed):
    rows = "title,tags\r\n" + "".join(f"é{n} 日本,x\r\n" for n in range(30_000))
    content = rows.encode(encoding)
    (tmp_path / "a.csv").write_bytes(gzip.compress(content, 1) if packed else content)
    texts = fed(tmp_path / "a.csv").texts
    assert len(texts) == 30_000 and texts[-1] == "é29999 日本"
    if encoding == "utf-16" and not packed:
        (tmp_path / "a.csv").write_bytes(content[:-1])
        with pytest.raises(DataError, match="not UTF-16"):
            fed(tmp_path / "a.csv")


def test_a_list_of_objects_is_read_one_by_one(tmp_path):
    rows = [{"name": f"thing {n}", "tags": ["a", "]"]} for n in range(500)]
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent))
        assert fed(tmp_path / "a.json").texts == [row["name"] for row in rows]
    (tmp_path / "a.json").write_text(json.dumps(rows)[:-9])
    with pytest.raises(DataError, match="not a complete JSON list"):
        fed(tmp_path / "a.json")


def test_bad_rows_of_tables_are_named_after_the_good_ones(tmp_path):
    (tmp_path / "a.csv").write_text("title,tags\n" + "cat,x\n" * 300 + "a,b,c\n")
    with open_feed(tmp_path / "a.csv") as feed:
        assert len(next(feed.blocks).texts) == 300
        with pytest.raises(DataError, match=r"a\.csv:302: 3 cells for 2 columns"):
            next(feed.blocks)
    (tmp_path / "a.jsonl").write_text('{"name": "red cat"}\n{"name": 5}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: no string under `name`"):
        fed(tmp_path / "a.jsonl")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not readable as Parquet"):
        fed(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="not found"):
        fed(tmp_path / "absent.csv")
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match="no column looks like texts"):
        fed(tmp_path / "n.parquet")


def test_the_own_label_of_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("title,own\ncat,3\ndog,B07\nfox,\n")
    find = {3: 3, "B07": 1}.__getitem__
    assert fed(tmp_path / "a.csv", find=find).own == [3, 1, None]
    pq.write_table(pa.table({"title": ["cat", "dog"], "own": [3, None]}), tmp_path / "a.parquet")
    assert fed(tmp_path / "a.parquet", find=find).own == [3, None]
