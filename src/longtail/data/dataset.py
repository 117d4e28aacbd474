"""TEXT + LABELS → DATASET: one immutable value that every later stage reads.

On disk (`save`, `open_dataset`) a data set is a folder of Arrow texts and memory-mapped CSR arrays, so that millions of
points open at once without being read. The fingerprint depends on the content only, never on the format it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.arrays import matrix_arrays, matrix_of
from longtail.data.fingerprint import digest
from longtail.data.holding import keeping_labels, label_groups, of_labels
from longtail.data.rows import LabelNames, LabelTexts, frame_rows, rows_of_labels, texts_of
from longtail.errors import BadArgument, DataError, ModelError
from longtail.files import (
    read_arrays,
    read_json,
    read_texts,
    write_arrays,
    write_json,
    write_texts,
)
from longtail.markup import html_table
from longtail.types import LabelMatrix, Texts, counted, joined, no_pairs
from longtail.whole import whole_folder

SCHEMA = 1
FINITE = float(np.finfo(np.float32).max)  # features may be of any size
OVER_LABELS = ("targets", "excluded", "alternatives.labels", "labels.broader")  # matrices with L columns
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Labels:
    """All L labels: their texts (absent in bag-of-words files), raw ids and features, as far as they are known."""

    count: int
    texts: Texts | None = None
    ids: Texts | None = None
    features: sp.csr_array | None = None  # (L, V)
    alternatives: Texts | None = None  # (A,) other texts of labels
    alternatives_of: sp.csr_array | None = None  # (A, L) whose they are
    broader: sp.csr_array | None = None  # (L, L) which labels are broader

    @property
    def all_texts(self) -> Texts | None:
        """The texts of labels, and then the other ones."""
        return self.texts if self.texts is None or self.alternatives is None else joined(self.texts, self.alternatives)

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, eq=False)
class Split:
    """N points with their texts or features, targets (N, L), and pairs (N, L) that are never counted nor trained on."""

    name: str
    labels: Labels
    targets: LabelMatrix
    excluded: LabelMatrix
    texts: Texts | None = None
    ids: Texts | None = None
    features: sp.csr_array | None = None  # (N, V), only where a file has no texts
    dataset: str = ""  # the name of the data set it belongs to
    augmented: NDArray[np.bool_] | None = None  # (N,) which points an augmentation made; never written to disk
    columns: tuple[str, ...] = ()  # of a table that the texts come from; never written to disk
    partial: bool = False  # whether other labels may be true of a point too: feedback; never written to disk
    source: Split | None = None  # the split before any augmentation: what frequencies, graphs and bins are counted on

    def __post_init__(self) -> None:
        for matrix in (self.targets, self.excluded, self.features):
            for array in () if matrix is None else (matrix.data, matrix.indices, matrix.indptr):
                array.setflags(write=False)  # a fingerprint stays true

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    def __repr__(self) -> str:
        return f"Split({self.name}: {counted(len(self), 'point')}, {counted(len(self.labels), 'label')})"

    @property
    def original(self) -> Split:
        """The split before any augmentation."""
        return self if self.source is None else self.source

    def need_texts(self, what: str) -> Texts:
        """Return the texts, or say why `what` cannot work without them."""
        if self.texts is None:
            raise DataError(
                f"this data set has features but no texts, and {what} needs texts",
                remedy="load a layout with raw texts (jsonl, parquet, csv, xmc-json …)",
            )
        return self.texts

    def parts(self) -> Iterable[tuple[str, Texts | sp.csr_array | None]]:
        """Name every text column and matrix."""
        yield f"{self.name}.text", self.texts
        yield f"{self.name}.id", self.ids
        yield f"{self.name}.features", self.features
        yield f"{self.name}.targets", self.targets
        yield f"{self.name}.excluded", self.excluded

    @cached_property
    def fingerprint(self) -> str:
        """Hash the points and the texts of the labels."""
        return digest([*self.parts(), ("labels.text", self.labels.texts)])

    def named(self, name: str) -> Split:
        """Give it another name."""
        return replace(self, name=name)

    def take(self, rows: NDArray[Any], name: str | None = None) -> Split:
        """Select points."""
        return replace(
            self,
            name=name or self.name,
            targets=self.targets[rows],
            excluded=self.excluded[rows],
            texts=None if self.texts is None else self.texts.take(rows),
            ids=None if self.ids is None else self.ids.take(rows),
            features=None if self.features is None else self.features[rows],
            augmented=None if self.augmented is None else self.augmented[rows],
        )

    def divide(
        self, share: float = 0.1, *, seed: int = 0, most: int | None = None, leave: bool = False
    ) -> tuple[Split, Split]:
        """Split the points at random into (the rest, a validation part); order is kept inside both.

        Augmented points do not become validation points, unless there are no others: real queries are not like them.
        With `leave` no label loses its last point, as far as there are points enough. Where most points share all their
        labels with others, as the titles of one occupation do, those go to one side together: what is asked later will
        hardly be one more of a group that is known; with `leave` they are asked for labels that other points have too.
        """
        real = np.arange(len(self))
        if self.augmented is not None and not self.augmented.all():
            real = np.flatnonzero(~self.augmented)
        size = min(max(1, round(share * len(real))), most or len(real), max(0, len(real) - 1))
        mask = np.zeros(len(self), np.bool_)
        random = np.random.default_rng(seed)
        order = random.permutation(real)
        groups = label_groups(self.targets, real)
        if groups is not None:
            chosen = random.permutation(int(groups.max()) + 1)
            place = np.argsort(chosen)[groups]  # of each point's group in that order
            order = real[np.argsort(place, kind="stable")]
            size = int(np.searchsorted(np.sort(place), np.sort(place)[size - 1], side="right")) if size else 0
            size = min(size, len(real) - 1)
        elif leave:
            order = keeping_labels(self.targets, order, size)
        mask[order[:size]] = True
        targets = self.targets
        if leave and groups is not None:
            known = of_labels(targets, targets[np.flatnonzero(~mask)].indices)
            if (asked := mask & (np.diff(known.indptr) > 0)).any():  # not where each group has labels of its own
                targets, mask = known, asked
        rest, held = np.flatnonzero(~mask), np.flatnonzero(mask)
        return self.take(rest), replace(self.take(held, "validation"), targets=targets[held])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Splits over one set of labels.

    >>> data = from_rows({"train": (["red cat"], [[0]])}, label_texts=["cat", "dog"])
    >>> data.train.targets.shape, data.labels.texts[1]
    ((1, 2), 'dog')
    """

    labels: Labels
    splits: Mapping[str, Split]
    name: str = "data"
    vocabulary: Texts | None = None  # (V,) names of features
    origin: str = field(default="memory", compare=False)

    def __post_init__(self) -> None:
        named = {name: replace(split, dataset=self.name) for name, split in self.splits.items()}
        object.__setattr__(self, "splits", MappingProxyType(named))

    def __getitem__(self, name: str) -> Split:
        if name not in self.splits:
            raise DataError(
                f"{self.name} has no {name} split",
                remedy=f"it has: {', '.join(self.splits)}; see `longtail data split`",
            )
        return self.splits[name]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split.name} {len(split):,}" for split in self.splits.values())
        return f"Dataset({self.name}: {sizes}; {counted(len(self.labels), 'label')})"

    @property
    def train(self) -> Split:
        """The training points."""
        return self["train"]

    @property
    def validation(self) -> Split:
        """The validation points, where the data set has them."""
        return self["validation"]

    @property
    def test(self) -> Split:
        """The test points."""
        return self["test"]

    @cached_property
    def fingerprint(self) -> str:
        """Hash the content: texts, ids, features, targets and excluded pairs, but not names or formats."""
        return digest(self._parts())

    def _parts(self) -> Iterable[tuple[str, Texts | sp.csr_array | None]]:
        """Name every text column and matrix."""
        yield "labels.text", self.labels.texts
        yield "labels.id", self.labels.ids
        yield "labels.features", self.labels.features
        yield "vocabulary.text", self.vocabulary
        if self.labels.alternatives is not None:  # parts that few have do not change the hash of the others
            yield "alternatives.text", self.labels.alternatives
            yield "alternatives.labels", self.labels.alternatives_of
        if self.labels.broader is not None:
            yield "labels.broader", self.labels.broader
        for split in self.splits.values():
            yield from split.parts()

    @staticmethod
    def from_rows(
        splits: Mapping[str, tuple[Iterable[str], Iterable[Any]]],
        *,
        label_texts: LabelTexts = None,
        sep: str | None = None,
        name: str = "data",
    ) -> Dataset:
        """Build a data set from Python lists of texts and their labels, names or numbers.

        Names are the texts of the labels, unless `label_texts` gives the texts: by name, or as a list, whose places
        numbers mean. A string is one label, or several with `sep` between them.

        >>> from_rows({"train": (["red cat", "old dog"], [["red", "cat"], ["dog"]])}).labels.texts.tolist()
        ['cat', 'dog', 'red']
        """
        rows = {split: rows_of_labels(column, sep) for split, (_, column) in splits.items()}
        names = LabelNames.of((row for own in rows.values() for row in own), label_texts)
        labels = Labels(len(names.texts), names.texts, names.ids)
        built = {}
        for split, (column, _) in splits.items():
            texts, targets = texts_of(column), names.targets(rows[split])
            if len(texts) != targets.shape[0]:
                raise BadArgument(
                    f"{counted(len(texts), 'text')} and labels for {counted(targets.shape[0], 'text')}",
                    remedy="give labels to each text; an empty list where it has none",
                )
            built[split] = Split(split, labels, targets, no_pairs(targets.shape), texts)
        return Dataset(labels, built, name)

    @staticmethod
    def from_frame(
        frame: Any,
        text: str | Sequence[str] = "text",
        labels: str = "labels",
        *,
        sep: str | None = None,
        split: str | None = None,
        label_texts: LabelTexts = None,
        name: str = "data",
    ) -> Dataset:
        """Build a data set from the columns of a pandas frame or of a dict of lists.

        Several text columns are joined. `labels` holds lists, or strings that `sep` cuts. The column `split` says which
        split a row belongs to; without it all rows are training points. The rest is as in `from_rows`.

        >>> frame = {"title": ["red cat", "old dog"], "tags": ["red;cat", "dog"]}
        >>> Dataset.from_frame(frame, text="title", labels="tags", sep=";")
        Dataset(data: train 2; 3 labels)
        """
        rows = frame_rows(frame, [text] if isinstance(text, str) else list(text), labels, split)
        return Dataset.from_rows(rows, label_texts=label_texts, sep=sep, name=name)

    def _repr_html_(self) -> str:
        rows = []
        for split in self.splits.values():
            each = split.targets.nnz / max(1, len(split))
            rows.append((split.name, len(split), each, int((np.diff(split.targets.indptr) == 0).sum())))
        heads = ("split", "points", "labels of a point", "points without labels")
        return html_table(heads, rows, f"{self.name}: {counted(len(self.labels), 'label')}")

    def with_splits(self, *splits: Split) -> Dataset:
        """Replace the splits."""
        return replace(self, splits={split.name: split for split in splits})

    def divided(self, share: float = 0.1, *, seed: int = 0) -> Dataset:
        """Add a validation split taken from the training points, unless there is one."""
        if "validation" in self.splits:
            return self
        train, validation = self.train.divide(share, seed=seed)
        others = [split for name, split in self.splits.items() if name != "train"]
        return self.with_splits(train, validation, *others)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the memory-mapped layout (format `arrow`)."""
        with whole_folder(path, force=force) as folder:
            arrays: dict[str, NDArray[Any]] = {}
            columns: dict[str, dict[str, Texts]] = {}
            for name, value in self._parts():
                table, _, column = name.partition(".")
                if isinstance(value, Texts):
                    columns.setdefault(table, {})[column] = value
                elif value is not None:
                    arrays |= matrix_arrays(name, value)
            for table, texts in columns.items():
                write_texts(folder / f"{table}.arrow", texts)
            write_arrays(folder / "matrices.safetensors", arrays)
            manifest = {"schema": SCHEMA, "name": self.name, "labels": len(self.labels), "splits": list(self.splits)}
            write_json(folder / "dataset.json", manifest | {"fingerprint": self.fingerprint, "tables": sorted(columns)})


def chosen_split(names: Iterable[str]) -> str:
    """Return the split to answer or to evaluate where none is named: test, or the only one."""
    first, *others = [*names] or ["test"]
    return "test" if others else first


def need_data(given: object) -> None:
    """Refuse what is no data set: the name of a file above all."""
    if not isinstance(given, Dataset | Split):
        how = f'lt.load("{given}")' if isinstance(given, str | Path) else "lt.from_rows, or lt.Dataset.from_frame"
        raise BadArgument(f"a data set is needed, not {type(given).__name__}", remedy=f"make one: {how}")


def open_dataset(path: str | Path) -> Dataset:
    """Open what `Dataset.save` wrote; texts and matrices stay on disk until they are used."""
    folder = Path(path)
    manifest = read_json(folder / "dataset.json", DataError)
    if manifest.get("schema") != SCHEMA:
        raise DataError(f"schema {manifest.get('schema')!r}, not {SCHEMA}", file=folder, remedy="convert it again")
    try:
        arrays = read_arrays(folder / "matrices.safetensors")
        tables = {str(table): read_texts(folder / f"{Path(table).name}.arrow") for table in manifest["tables"]}
        if not {column for columns in tables.values() for column in columns} <= {"text", "id"}:
            raise ValueError("a text column of an unknown name")
        count = int(manifest["labels"])
        width: dict[bool, int] = {True: count}  # of matrices over labels, and of matrices over features

        def matrix(name: str) -> sp.csr_array | None:
            if f"{name}.indptr" not in arrays:
                return None
            loaded = matrix_of(arrays, name, low=-FINITE, high=FINITE)
            if loaded.shape[1] != width.setdefault(name.endswith(OVER_LABELS), loaded.shape[1]):
                raise ValueError(f"{name} has {loaded.shape[1]} columns")
            return loaded

        label_columns = tables.get("labels", {})
        labels = Labels(
            count, label_columns.get("text"), label_columns.get("id"), matrix("labels.features"),
            tables.get("alternatives", {}).get("text"), matrix("alternatives.labels"), matrix("labels.broader"),
        )  # fmt: skip
        splits = []
        for name in map(str, manifest["splits"]):
            texts, targets = tables.get(name, {}), matrix(f"{name}.targets")
            if targets is None:
                raise ValueError(f"no targets for {name}")
            excluded = matrix(f"{name}.excluded")
            splits.append(
                Split(
                    name, labels, targets, no_pairs(targets.shape) if excluded is None else excluded,
                    texts.get("text"), texts.get("id"), matrix(f"{name}.features"),
                )
            )  # fmt: skip
        vocabulary = tables.get("vocabulary", {}).get("text")
        data = Dataset(labels, {s.name: s for s in splits}, str(manifest["name"]), vocabulary, str(folder))
        _check_lengths(data)
    except (ModelError, LookupError, ValueError, TypeError, ArithmeticError, OSError, pa.ArrowException) as reason:
        raise DataError(f"damaged ({reason})", file=folder, remedy="convert the data set again") from None
    return data


from_rows = Dataset.from_rows


def _check_lengths(data: Dataset) -> None:
    """Check that columns of one table are equally long."""
    tables = [(data.labels.count, "labels", (data.labels.texts, data.labels.ids))]
    tables += [(len(split), split.name, (split.texts, split.ids)) for split in data.splits.values()]
    related = data.labels.alternatives_of
    if related is not None and (data.labels.alternatives is None or len(data.labels.alternatives) != related.shape[0]):
        raise ValueError("alternatives without their labels")
    for count, name, columns in tables:
        for column in columns:
            if column is not None and len(column) != count:
                raise ValueError(f"{name} has {len(column)} texts for {count} rows")
