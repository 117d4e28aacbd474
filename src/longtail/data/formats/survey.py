"""FOLDER → FILES BY ROLE → FORMAT: names say what a file is for, its content says how it is written.

Roles (S is trn|train, tst|test or val|valid|validation|dev; `.gz` may follow any name):

    points    S, name_S         one file with texts or features and labels
    targets   S_X_Y, Y.S        label matrix
    texts     S_X, S_texts      one text a line
    tags      S_labels          label names of a point in a line
    features  S_X_Xf, X.S       feature matrix
    ids       S_raw_ids         one raw id a line
    filter    S_filter, S_filter_labels, filter_labels_S     pairs "point label"
    labels    lbl|label|labels|Y|Z.all     label texts;  label_ids  label_raw_ids;  label_features  Yf|lbl_X_Xf|Z
    label_alternatives "label<TAB>text", label_broader "label label";  vocabularies  *.ttl, *.rdf … (SKOS)
    label_count, vocabulary (Xf)
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longtail.data.dataset import SPLITS
from longtail.data.formats.columns import IDS, LABELS, TEXTS, WEIGHTS, Reading
from longtail.data.formats.lines import read_bytes, read_head
from longtail.data.problems import Problems
from longtail.errors import DataError

TOKENS = {"trn": "train", "train": "train", "tst": "test", "test": "test"}
TOKENS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
SHORT = {"train": "trn", "test": "tst", "validation": "val"}
LONG = {"train": "train", "test": "test", "validation": "valid"}

_S = f"(?P<split>{'|'.join(TOKENS)})"
_TEXT, _ARRAY = r"\.txt", r"\.npz"
_ROLES = [
    ("targets", rf"{_S}_x_y{_TEXT}|y\.(?P<array>{'|'.join(TOKENS)}){_ARRAY}"),
    ("features", rf"{_S}_x_xf{_TEXT}|x\.(?P<array>{'|'.join(TOKENS)}){_ARRAY}"),
    ("texts", rf"{_S}_(?:x|texts){_TEXT}"),
    ("tags", rf"{_S}_labels{_TEXT}"),
    ("ids", rf"{_S}_raw_ids{_TEXT}"),
    ("filter", rf"{_S}_filter(?:_labels)?{_TEXT}|filter_labels_(?P<array>{'|'.join(TOKENS)}){_TEXT}"),
    ("label_ids", rf"labels?_raw_ids{_TEXT}"),
    ("alternatives", rf"label_alternatives{_TEXT}"),
    ("broader", rf"label_broader{_TEXT}"),
    ("vocabularies", r".*\.(?:ttl|n3|nt|rdf)|.*skos.*\.xml"),
    ("label_count", rf"label_count{_TEXT}"),
    ("label_features", rf"(?:yf|lbl_x_xf){_TEXT}|z{_ARRAY}"),
    ("vocabulary", rf"xf{_TEXT}"),
    ("labels", r"(?:lbl|labels?|y|z\.all)\.(?:txt|jsonl?|ndjson|csv|tsv|parquet|xlsx)"),
    ("points", rf"(?:.*[-_.])?{_S}(?:\.(?:txt|jsonl?|ndjson|csv|tsv|parquet|xlsx|svm|libsvm))?"),
]
_PATTERNS = [(role, re.compile(pattern)) for role, pattern in _ROLES]

RECOGNISED = (
    "longtail recognises a table (csv, tsv, xlsx, parquet, jsonl), a folder with files for trn|train, tst|test, "
    "val|dev (tables, fastText, pecos, one-file sparse), or trn_X_Y.txt with trn_X.txt or trn_X_Xf.txt, or "
    "train_texts.txt with train_labels.txt, or one file of these; "
    "where the content does not tell the format, name it with --from (format= in Python)"
)
ONE_FORMAT = (
    "keep one format in a folder; where every split has files of several, name the one to read with --from "
    "(format= in Python)"
)
COLUMNS = {*TEXTS, *LABELS, *WEIGHTS, *IDS}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")


def role(name: str) -> tuple[str, str] | None:
    """Return what a file is for by its name, as (role, split).

    >>> role("tst_X_Y.txt"), role("eurlex_train.txt.gz"), role("Y.txt"), role("README.md")
    (('targets', 'test'), ('points', 'train'), ('labels', ''), None)
    """
    plain = name.lower().removesuffix(".gz")
    for what, pattern in _PATTERNS:
        match = pattern.fullmatch(plain)
        if match:
            groups = match.groupdict()
            return what, TOKENS.get(groups.get("split") or groups.get("array") or "", "")
    return None


@dataclass(frozen=True)
class Survey:
    """The files of one data set by role and split, and what the caller says of them."""

    root: Path
    files: Mapping[tuple[str, str], tuple[Path, ...]]
    reading: Reading = field(default_factory=Reading)

    def get(self, what: str, split: str = "", *, prefer: str = "") -> Path | None:
        """Return the file of a role, None if there is none; of several take the one that ends with `prefer`."""
        paths = self.files.get((what, split), ())
        if len(paths) > 1 and prefer:
            paths = tuple(path for path in paths if path.name.lower().removesuffix(".gz").endswith(prefer)) or paths
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            purpose = f"the {what} of {split}" if split else what
            raise DataError(f"{len(paths)} files for {purpose}: {names}", file=self.root, remedy="keep one of them")
        return paths[0] if paths else None

    def splits(self, *roles: str) -> Iterator[str]:
        """List the splits that have a file of one of these roles, in the order train, validation, test."""
        for split in SPLITS:
            if any((what, split) in self.files for what in roles):
                yield split


def look_at(path: Path, reading: Reading = Reading()) -> Survey:  # noqa: B008  (frozen)
    """List the files of a folder by role; a single file is the split that its name says, else train.

    In a folder without any file of points, its only table is the training split, whatever it is called.
    """
    if not path.exists():
        raise DataError("not found", file=path, remedy="give a folder or a file that exists")
    if path.is_file():
        known = role(path.name)
        split = known[1] if known and known[0] == "points" else ""
        return Survey(path.parent, {("points", split or "train"): (path,)}, reading)
    files: dict[tuple[str, str], tuple[Path, ...]] = {}
    try:
        names = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as reason:
        raise DataError(f"cannot be read ({reason.strerror})", file=path, remedy="give a readable folder") from None
    for entry in names:
        known = role(entry.name)
        if known:
            files[known] = (*files.get(known, ()), entry)
    if not any(what in ("points", "targets", "tags") for what, _ in files):
        tables = [entry for entry in names if _plain_name(entry).endswith(TABLES) and role(entry.name) is None]
        if len(tables) == 1:
            files["points", "train"] = (tables[0],)
    return Survey(path, files, reading)


def _plain_name(path: Path) -> str:
    """Return the name of a file in lower case, without .gz."""
    return path.name.lower().removesuffix(".gz")


def find_format(path: Path, survey: Survey) -> str:
    """Return the format of a data set, from the first bytes of its files."""
    if (path / "dataset.json").is_file():
        return "arrow"
    kinds: dict[str, Path] = {}
    for split in survey.splits("points"):
        for file in survey.files["points", split]:
            kinds.setdefault(sniff(read_head(file), _plain_name(file)), file)
    unknown = kinds.pop("", None)
    if len(kinds) > 1:
        found = ", ".join(f"{file.name} is {kind}" for kind, file in kinds.items())
        raise DataError(f"files of different formats: {found}", file=path, remedy=ONE_FORMAT)
    if kinds:
        return next(iter(kinds))
    if any(survey.splits("targets")):
        return "xmc"
    if any(survey.splits("tags")):
        return "attentionxml"
    if unknown is not None:
        _explain(unknown)
    raise DataError(f"no known format; found {_listing(path)}", file=path, remedy=RECOGNISED)


def _explain(file: Path) -> None:
    """Raise what can be said of a file of points that is like no format."""
    if not read_head(file).strip():
        read_bytes(file, Problems())  # says why a file that is not empty cannot be read
        raise DataError("an empty file", file=file, remedy="write one point a line, or remove the file")


def sniff(head: bytes, name: str = "") -> str:
    r"""Return the format of a file of points, from its first bytes, else from its name, "" if unknown.

    >>> sniff(b'{"text": "a", "labels": [0]}'), sniff(b"__label__3 a"), sniff(b"2 5 7\n1,2 0:1.5"), sniff(b"1,2\ta b")
    ('jsonl', 'fasttext', 'xc', 'pecos')
    """
    first = head.partition(b"\n")[0].removesuffix(b"\r")
    named = name.endswith((".csv", ".tsv"))
    pecos = re.match(rb"(?:\d+(?:,\d+)*)?\t", first) and not named
    mark = find_separator([first.decode("utf-8", "replace")], ",")
    table = not first.startswith(b"__label__") and not pecos and _has_columns(first, mark)
    if head.startswith(b"PAR1"):
        kind = "parquet"
    elif head.startswith(b"PK\x03\x04") and (name.endswith(".xlsx") or b"xl/" in head):
        kind = "excel"
    elif re.search(rb"^__label__", head, re.MULTILINE) and not table:  # a text of a table may begin so
        kind = "fasttext"
    elif first.lstrip(b" ").startswith(b"{"):
        kind = "xmc-json" if _has_key(first, "target_ind") else "jsonl"
    elif re.match(rb"\s*\[\s*\{", head) and not named:
        kind = "jsonl"
    elif re.fullmatch(rb" *\d+ +\d+ +\d+ *", first):
        kind = "xc"
    elif _has_columns(first, "\t"):
        kind = "tsv"
    elif pecos:
        kind = "pecos"
    else:
        kind = "csv" if table else name[-3:] if named and head.strip() else ""
    return kind


def find_separator(lines: Sequence[str], usual: str) -> str:
    """Return which of , ; tab and | separates the cells: the one that gives most known columns, else even rows.

    >>> find_separator(["text;labels"], ","), find_separator(["text,labels"], ","), find_separator(["text"], ",")
    (';', ',', ',')
    >>> find_separator(["red cat; old;cat", "dog;a"], ","), find_separator(["red, old;cat", "dog;a, b, c"], ",")
    (',', ';')
    """
    marks = usual + ",;\t"  # of equals max takes the first
    header = lines[0].encode("utf-8", "replace") if lines else b""
    best = max(marks + "|", key=lambda mark: len(_cells(header, mark) & COLUMNS))
    if _cells(header, best) & COLUMNS:
        return best
    return max(marks, key=lambda mark: _even_width(lines, mark))


def _even_width(lines: Sequence[str], mark: str) -> int:
    """Return how many cells a mark makes of every line, 0 if not of all the same number, or only one."""
    try:
        widths = [len(row) for row in csv.reader((line + "\n" for line in lines), delimiter=mark) if row]
    except csv.Error:
        return 0
    even = len({*(widths[:-1] if len(widths) > 20 else widths)}) == 1  # the last of many may be cut
    return widths[0] if even and widths[0] > 1 else 0


def _has_key(line: bytes, key: str) -> bool:
    """Return whether a JSON object has a key; a damaged line is searched as text."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return f'"{key}"'.encode() in line
    return isinstance(value, dict) and key in value


def _has_columns(first: bytes, separator: str) -> bool:
    """Return whether a line is the header of a table with columns for texts and labels."""
    cells = _cells(first, separator)
    return bool(cells & {*TEXTS} and cells & {*LABELS})


def _cells(first: bytes, separator: str) -> set[str]:
    """Name the columns of a header row; a very long line is none."""
    if len(first) > 10_000:
        return set()
    line = first.decode("utf-8", "replace").replace("\r", " ")  # which csv would refuse
    return {cell.strip().lower() for cell in next(csv.reader([line], delimiter=separator), [])}


def _listing(path: Path) -> str:
    """Describe the files that are there, with the beginning of the likely ones."""
    if path.is_file():
        return f"a file that begins {read_head(path, 200)[:40]!r}"
    entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in path.iterdir())
    if not entries:
        return "an empty folder"
    shown = entries[:12]
    for n, name in enumerate(shown):
        known = role(name)
        if known and known[0] == "points":
            shown[n] = f"{name} (begins {read_head(path / name, 200)[:40]!r})"
    return ", ".join(shown) + (f" and {len(entries) - 12} more" if len(entries) > 12 else "")
