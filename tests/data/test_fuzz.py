"""Damaged files of every format: each ends as a data set that holds together, or as a DataError; never otherwise."""

from __future__ import annotations

import gzip
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from longtail.data.check import check
from longtail.data.dataset import Dataset, Labels, Split
from longtail.data.formats import FORMATS, load, write
from longtail.errors import DataError
from longtail.types import Texts, label_matrix

TOKENS = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"999999999999999999999", b"4294967296", b"-1", b"NaN", b"Infinity",
    b"1e999", b"-0", b"0.5", b"1.5", b"1_000", b"true", b"null", b"[", b"]", b"{", b"}", b'"', b"\\", b"\\ud800", b"\t",
    b"\n", b"\r\n", b"\r", b":", b",", b";", b"|", b" ", b"__label__", "٣".encode(), "\u2028".encode(), b"PAR1",
    b"[" * 5000, b"9" * 5000, b'{"a":' * 3000, b"1000000000000 4 4\n", b"labels", b"target_ind", b"\x1f\x8b",
    b"PK\x03\x04", b"'descr': '|O'", b"[1,", b"[[0]]", b'["a"]',
]  # fmt: skip


def small() -> Dataset:
    """Make a data set with ids, a filter, an empty row and label texts."""
    labels = Labels(4, Texts(["red", "green leaf", "12", "x, y"]), Texts(["r", "g", "12", "xy"]))
    splits = {}
    for name in ("train", "test"):
        targets = label_matrix(np.array([0, 2, 3, 3, 4]), np.array([0, 2, 1, 3]), (4, 4))
        excluded = label_matrix(np.array([0, 1, 1, 2, 2]), np.array([1, 0]), (4, 4))
        texts = Texts(["a red cat", 'the "green" leaf, é', "", "12 34"])
        splits[name] = Split(name, labels, targets, excluded, texts, Texts(["p0", "p1", "p2", "3"]))
    return Dataset(labels, splits)


def seeds(folder: Path) -> dict[str, list[Path]]:
    """Write the data set in every format, and once more with soft values and without packing."""
    data = small()
    files = {}
    for name, kind in FORMATS.items():
        if not kind.writable:
            continue
        if kind.soft:
            softer = {}
            for split in data.splits.values():
                soft = split.targets.copy()
                soft.data = (soft.data * np.float32(0.3)).astype(np.float32)
                softer[split.name] = Split(split.name, data.labels, soft, split.excluded, split.texts, split.ids)
            write(Dataset(data.labels, softer), folder / f"{name}-soft", name)
        write(data, folder / name, name)
    features = {}
    for split in load(folder / "xmc").splits.values():
        matrix = label_matrix(np.array([0, 2, 3, 3, 4]), np.array([0, 4, 3, 1]), (4, 5), np.array([0.5, 1, 0.25, 1]))
        features[split.name] = Split(split.name, data.labels, split.targets, split.excluded, features=matrix)
    for name in ("xmc", "xc"):
        write(Dataset(data.labels, features), folder / f"{name}-features", name)
    openpyxl, book = pytest.importorskip("openpyxl"), folder / "excel"
    book.mkdir()
    workbook = openpyxl.Workbook()
    for row in (["title", "tags"], ["a red cat", "red|12"], ["x", "12"], [3.5, 12]):
        workbook.active.append(row)
    workbook.save(book / "train.xlsx")
    for case in sorted(folder.iterdir()):
        for path in case.iterdir():
            if path.suffix == ".gz" and not case.name.endswith("soft"):
                path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
                path.unlink()
        files[case.name] = sorted(case.iterdir())
    return files


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Change bytes in one to three ways."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        content = chance.choice(WAYS)(content, chance)
    return content


def _span(content: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(content) + 1)
    return start, min(len(content), start + chance.choice([1, 1, 2, 4, 16, 64]))


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\x80"
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


def _truncate(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _delete(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance)
    return content[:start] + content[stop:]


def _duplicate(content: bytes, chance: random.Random) -> bytes:
    start, stop = _span(content, chance)
    return content[:stop] + content[start:stop] + content[stop:]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(TOKENS) + content[place:]


def _lines(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    way = chance.randrange(3)
    if way == 0:
        lines[one], lines[other] = lines[other], lines[one]
    elif way == 1:
        lines.insert(one, lines[other])
    else:
        del lines[one]
    return b"\n".join(lines)


def _number(content: bytes, chance: random.Random) -> bytes:
    matches = list(re.finditer(rb"\d+(?:\.\d+)?", content))
    if not matches:
        return content
    start, stop = chance.choice(matches).span()
    return content[:start] + chance.choice(TOKENS) + content[stop:]


WAYS = [_flip, _flip, _truncate, _delete, _duplicate, _insert, _lines, _number]


def damage(path: Path, chance: random.Random, others: list[Path]) -> None:
    """Damage one file, or the folder around it."""
    way = chance.random()
    content = path.read_bytes()
    if way < 0.01:
        path.unlink()
    elif way < 0.02:
        path.unlink()
        path.mkdir()
    elif way < 0.03:
        path.write_bytes(chance.choice(others).read_bytes())
    elif path.suffix == ".gz" and way < 0.7:
        path.write_bytes(gzip.compress(damaged(gzip.decompress(content), chance), 1))
    elif path.suffix != ".gz" and way > 0.97:
        path.write_bytes(damaged(gzip.compress(content, 1), chance))
    else:
        path.write_bytes(damaged(content, chance))


def sound(data: Dataset) -> None:
    """Check that a data set holds together."""
    assert data.fingerprint
    for split in data.splits.values():
        for matrix in (split.targets, split.excluded):
            assert matrix.shape == (len(split), len(data.labels))
            assert len(matrix.indptr) == len(split) + 1
            assert matrix.indptr[-1] == len(matrix.indices) == len(matrix.data)
        for column in (split.texts, split.ids):
            assert column is None or len(column) == len(split)
    for column in (data.labels.texts, data.labels.ids):
        assert column is None or len(column) == len(data.labels)


def canonical(data: Dataset) -> None:
    """Check what all readers promise; a damaged arrow folder is opened without reading it all, and `check` notices."""
    for split in data.splits.values():
        assert split.texts is not None or split.features is not None
        values, columns = split.targets.data, split.targets.indices
        assert ((values > 0) & (values <= 1)).all()
        rows = np.repeat(np.arange(len(split)), np.diff(split.targets.indptr))
        assert (np.diff(rows * len(data.labels) + columns.astype(np.int64)) > 0).all()


def fuzz(folder: Path, start: int, count: int) -> tuple[int, int]:
    """Try `count` damaged data sets; return how many loaded and how many were refused."""
    cases = seeds(folder / "seeds")
    names = sorted(cases)
    everything = [path for paths in cases.values() for path in paths]
    shutil.copytree(folder / "seeds", folder / "copies")
    loaded = refused = 0
    for number in range(start, start + count):
        chance = random.Random(number)
        name = names[number % len(names)]
        target = folder / "copies" / name
        original = chance.choice(cases[name])
        victim = target / original.name
        damage(victim, chance, everything)
        try:
            try:
                data = load(target)
                sound(data)
                if not name.startswith("arrow"):
                    canonical(data)
                loaded += 1
            except DataError:
                refused += 1
            if number % 5 == 0:
                check(target)
        except Exception as reason:
            pytest.fail(f"seed {number}, {name}, {victim.name}: {type(reason).__name__}: {reason}")
        if victim.is_dir():
            victim.rmdir()
        shutil.copyfile(original, victim)
    return loaded, refused


def test_damaged_files_load_or_are_refused(tmp_path: Path) -> None:
    loaded, refused = fuzz(tmp_path, 0, 1_000)
    assert loaded > 25 and refused > 250  # the damage is neither harmless nor total


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files(tmp_path: Path) -> None:
    loaded, refused = fuzz(tmp_path, 1_000_000, 100_000)
    assert loaded + refused == 100_000
