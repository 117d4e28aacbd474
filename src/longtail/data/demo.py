"""INSTALLED PYTHON PACKAGES → DATASET: a real item-to-item data set without a download.

A point is a documented function, class or method of the scientific Python packages ("pandas Data Frame merge: Merge
DataFrame or named Series objects with a database-style join."); its labels are the objects in its "See Also" section.
Anyone who writes Python can judge the predictions by eye, and the long tail is a natural one.

Packages are read in processes of their own, so that importing them changes nothing in the caller: no plotting backend,
no warning filter, no monkey patch, no file outside a temporary folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pkgutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from longtail.data.dataset import Dataset, Labels, Split, open_dataset
from longtail.data.docstrings import see_also, summary, words
from longtail.errors import DataError, MissingExtra, ResourceError
from longtail.files import read_json
from longtail.types import LabelMatrix, Progress, Texts, label_matrix
from longtail.whole import temporary

NAME = "PythonSeeAlso"
SCHEMA = 1  # raise it when the same packages would give another data set
SEED = 20240
TEST_SHARE = 0.2
LONGEST_READ = 300  # seconds for one package; a hanging import must not hang the caller

# The slowest to read come first, so that they do not finish last and alone.
PACKAGES = (
    "matplotlib", "astropy", "statsmodels", "scipy", "sklearn", "pandas",
    "dask", "skimage", "xarray", "networkx", "seaborn", "numpy",
)  # fmt: skip
DISTRIBUTIONS = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
ALIASES = {
    "np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "mpl": "matplotlib", "sns": "seaborn", "nx": "networkx",
    "xr": "xarray", "da": "dask.array", "dd": "dask.dataframe", "sm": "statsmodels.api",
}  # fmt: skip
# Test suites, vendored copies, and modules that run as scripts or look for a window system when they are imported.
SKIPPED = {
    "test", "tests", "conftest", "setup", "examples", "benchmarks", "sandbox", "backends", "extern", "externals",
    "f2py", "distutils",
}  # fmt: skip

Paths = dict[str, bool]  # the public paths of an object, and whether it is inherited there


@dataclass(frozen=True)
class Item:
    """One documented object: its public paths, best first, its summary, and the names in its "See Also" section."""

    paths: tuple[str, ...]
    summary: str
    links: tuple[str, ...]

    @property
    def text(self) -> str:
        """Join the name, split in words, and the summary.

        >>> Item(("matplotlib.axes.Axes.plot",), "Plot y versus x.", ()).text
        'matplotlib Axes plot: Plot y versus x.'
        """
        parts = [part for part in self.paths[0].split(".") if part not in {"api", "core"}]
        return f"{words('.'.join(parts))}: {self.summary}"


def demo_dataset(
    *, packages: Sequence[str] = PACKAGES, cache: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """Build PythonSeeAlso from those packages that are installed, or open it when it was built before.

    The same installed packages in the same versions give the same data set. It is kept in `cache`, by default
    `$LONGTAIL_CACHE` or `~/.cache/longtail`. `progress` is called with (package, packages read, packages to read).
    """
    requested = list(dict.fromkeys(packages))
    versions = {package: version for package in requested if (version := _version(package))}
    if not versions:
        raise MissingExtra("pandas" if "pandas" in requested else next(iter(requested), "pandas"), "demo")
    root = Path(cache or os.environ.get("LONGTAIL_CACHE") or "~/.cache/longtail").expanduser()
    # what else is installed counts too: it decides which modules of a package can be imported
    others = sorted((part.name or "", part.version) for part in importlib.metadata.distributions())
    key = json.dumps([SCHEMA, sys.version_info[:2], sorted(versions.items()), others])
    folder = root / f"{NAME}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return _cached(folder) or _stored(_assembled(_read_packages(list(versions), progress)), folder)


class Directory:
    """Find the item that a name means where it is written.

    >>> items = [Item((path,), "", ()) for path in ("pandas.Series.sum", "pandas.DataFrame.sum", "pandas.concat")]
    >>> [Directory(items).find(name, items[1]) for name in ("Series.sum", "pd.concat", "sum", "merge")]
    [0, 2, None, None]
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.places: dict[str, int] = {}
        self.endings: dict[tuple[str, str], int | None] = {}  # None: more than one item of the package ends so
        for number, item in enumerate(items):
            for path in item.paths:
                self.places.setdefault(path, number)
                package, *rest = path.split(".")
                for start in range(max(0, len(rest) - 3), len(rest)):
                    ending = (package, ".".join(rest[start:]))
                    self.endings[ending] = number if self.endings.get(ending, number) == number else None

    def find(self, name: str, origin: Item) -> int | None:
        """Look in the class, module and packages of `origin`, then everywhere, then for the only such ending."""
        head, _, tail = name.lstrip(".").partition(".")
        name = ".".join(filter(None, (ALIASES.get(head, head) if tail else head, tail)))
        own = self.places.get(origin.paths[0])
        for path in origin.paths:
            scope = path
            while "." in scope:
                scope = scope.rpartition(".")[0]
                number = self.places.get(f"{scope}.{name}")
                if number is not None and number != own:
                    return number
        number = self.places.get(name, self.endings.get((origin.paths[0].partition(".")[0], name)))
        return number if number != own else None


def _assembled(items: Sequence[Item]) -> Dataset:
    """Resolve the links, divide the points, and keep the labels that have a training point."""
    items = sorted(items, key=lambda item: (item.paths, item.summary, item.links))  # they come in any order
    directory = Directory(items)
    linked = []
    for number, item in enumerate(items):
        numbers = {directory.find(name, item) for name in item.links}
        targets = sorted(target for target in numbers if target is not None and items[target].summary)
        if targets and item.summary:
            linked.append((number, targets))
    if len(linked) < 2:
        raise DataError("no linked “See Also” sections in these packages", remedy="name more packages")
    order = np.random.default_rng(SEED).permutation(len(linked))
    size = len(linked) - max(1, round(TEST_SHARE * len(linked)))
    train = [linked[i] for i in order[:size]]
    label_items = sorted({target for _, targets in train for target in targets})
    columns = {number: column for column, number in enumerate(label_items)}
    test = [linked[i] for i in order[size:] if not columns.keys().isdisjoint(linked[i][1])]
    labels = Labels(len(label_items), *_columns(items, label_items))
    splits = {name: _split(name, points, items, labels, columns) for name, points in (("train", train), ("test", test))}
    return Dataset(labels, splits, NAME, origin="installed packages")


def _split(
    name: str, points: Sequence[tuple[int, list[int]]], items: Sequence[Item], labels: Labels, columns: dict[int, int]
) -> Split:
    """Make one split; the label that is the point itself is never counted."""

    def matrix(rows: Iterable[list[int]]) -> LabelMatrix:
        lists = [[columns[number] for number in row if number in columns] for row in rows]
        indptr = np.cumsum([0, *map(len, lists)])
        return label_matrix(indptr, np.array([*chain.from_iterable(lists)], np.int32), (len(lists), len(labels)))

    targets, excluded = matrix(row for _, row in points), matrix([number] for number, _ in points)
    return Split(name, labels, targets, excluded, *_columns(items, [number for number, _ in points]))


def _columns(items: Sequence[Item], numbers: Sequence[int]) -> tuple[Texts, Texts]:
    """Return texts and ids."""
    return Texts([items[number].text for number in numbers]), Texts([items[number].paths[0] for number in numbers])


def _version(package: str) -> str | None:
    """Return the version of an installed package without importing it; None where it is absent."""
    if "." in package or importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        owners = importlib.metadata.packages_distributions().get(package)
        return importlib.metadata.version(owners[0]) if owners else None


def _cached(folder: Path) -> Dataset | None:
    """Open a cached data set; None where there is none or its content is not what was written."""
    try:
        data = open_dataset(folder)
        valid = read_json(folder / "dataset.json", DataError).get("fingerprint") == data.fingerprint
    except DataError:
        return None  # absent, damaged, or just being replaced by another process: it is built again
    return data if valid else None


def _stored(data: Dataset, folder: Path) -> Dataset:
    """Cache a data set and return the cached copy."""
    if cached := _cached(folder):
        return cached  # another process was faster, and has made the same
    try:
        data.save(folder, force=True)
    except OSError as reason:
        # Another process may have put its copy there between our look and our move; then that one is as good.
        if _cached(folder) is None:
            raise ResourceError(f"{folder} cannot be written ({reason}); set LONGTAIL_CACHE elsewhere") from None
    return _cached(folder) or data


def _read_packages(packages: Sequence[str], progress: Progress | None) -> list[Item]:
    """Read packages side by side, each in a process of its own."""
    items: list[Item] = []
    with ThreadPoolExecutor(min(len(packages), os.cpu_count() or 1)) as pool:
        futures = {pool.submit(_read_package, package): package for package in packages}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                items += future.result()
                if progress:
                    progress(futures[future], done, len(packages))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after a failure or Ctrl-C, start no further process
    return items


def _read_package(package: str) -> list[Item]:
    """Start a process that writes the items of one package to a file, in a temporary home."""
    with temporary("demo") as home:
        target = home / "items.json"
        homes = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), str(home))
        path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
        settings = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg"}
        code = "import sys; from longtail.data import demo; demo.write_items(*sys.argv[1:])"
        command = [sys.executable, "-P", "-W", "ignore", "-c", code, package, str(target)]
        try:
            subprocess.run(
                command, check=True, cwd=home, env={**os.environ, **homes, **settings}, timeout=LONGEST_READ,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            records = json.loads(target.read_text("utf-8"))
        except (subprocess.SubprocessError, OSError, ValueError) as reason:
            said = (
                reason.stderr if isinstance(reason, subprocess.CalledProcessError | subprocess.TimeoutExpired) else None
            )
            last_line = (said or b"").decode("utf-8", "replace").strip().splitlines()[-1:]
            message = ": ".join([f"{package} cannot be read ({type(reason).__name__})", *last_line])
            raise ResourceError(f"{message}; mend it, or leave it out by demo_dataset(packages=…)") from None
    return [Item(tuple(record["paths"]), record["summary"], tuple(record["links"])) for record in records]


def write_items(package: str, target: str) -> None:
    """Import a package and write its items as JSON; meant for a process of its own."""
    warnings.simplefilter("ignore")
    Path(target).write_text(json.dumps([asdict(item) for item in package_items(package)]), "utf-8")


def package_items(package: str) -> list[Item]:
    """Import the public modules of a package and list what they document, one item per object or equal docstring."""
    objects: dict[int, tuple[Any, Paths]] = {}  # by identity
    for module in _modules(package):
        for name, thing in _members(module, package):
            objects.setdefault(id(thing), (thing, {}))[1][f"{module.__name__}.{name}"] = False
    # Classes inside classes first, such as pandas.Series.str: their methods take the paths that are found here.
    for inner in (True, False):
        for owner, owner_paths in [entry for entry in objects.values() if inspect.isclass(entry[0])]:
            shortest = sorted(owner_paths, key=_length)[:3]
            for name, thing, inherited in _attributes(owner, package):
                if inspect.isclass(thing) == inner:
                    paths = objects.setdefault(id(thing), (thing, {}))[1]
                    paths.update((f"{path}.{name}", inherited) for path in shortest)
    merged: dict[tuple[str, str], Paths] = {}
    for thing, paths in objects.values():
        if doc := _docstring(thing):
            merged.setdefault((min(paths, key=_length).rpartition(".")[2], doc), {}).update(paths)
    links = [see_also(doc) for _, doc in merged]
    mentions = Counter(name.rpartition(".")[0] for names in links for name in names)
    return [
        Item(_ranked(paths, mentions), summary(doc), names)
        for ((_, doc), paths), names in zip(merged.items(), links, strict=True)
    ]


def _length(path: str) -> tuple[int, bool, int, str]:
    """Rank paths: fewest dots, not through an inner `core`, shortest, first in the alphabet."""
    return path.count("."), ".core." in path, len(path), path


def _ranked(paths: Paths, mentions: Counter[str]) -> tuple[str, ...]:
    """Put the path first that users know: short, where the object is defined, on the class that links name most."""

    def rank(path: str) -> tuple[int, bool, bool, int, tuple[int, bool, int, str]]:
        owner = path.split(".")[:-1]
        mention_count = mentions[owner[-1]] + mentions[".".join(owner[-2:])]  # Series.str before Index.str
        return path.count("."), ".core." in path, paths[path], -mention_count, _length(path)

    return tuple(sorted(paths, key=rank))


def _modules(package: str) -> Iterator[ModuleType]:
    """Import a package and its public modules; those that cannot be imported here are left out."""
    waiting = [package]
    while waiting:
        name = waiting.pop()
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit):
            continue  # it needs something that is not installed, or is a script
        yield module
        inner = sorted(info.name for info in pkgutil.iter_modules(vars(module).get("__path__", [])))
        waiting += [f"{name}.{last}" for last in inner if not last.startswith("_") and last not in SKIPPED]


def _members(module: ModuleType, package: str) -> Iterator[tuple[str, Any]]:
    """Yield the public callables that belong to a module."""
    listed = vars(module).get("__all__")  # not getattr: a module may make its names on demand, or refuse to
    whole = listed is None and "__path__" in vars(module)  # such a package shows all that it imports from itself
    for name in sorted({*map(str, listed or ()), *dir(module)}):
        try:
            thing = getattr(module, name)
            defined_in = getattr(thing, "__module__", None) or package
        except Exception:
            continue  # a lazy name whose module cannot be imported here
        shown = name in (listed or ()) or defined_in == module.__name__ or whole
        owned = isinstance(defined_in, str) and defined_in.partition(".")[0] == package
        if shown and owned and not name.startswith("_") and callable(thing) and not isinstance(thing, ModuleType):
            yield name, thing


def _attributes(owner: type, package: str) -> Iterator[tuple[str, Any, bool]]:
    """Yield the public methods, properties and inner classes of a class, and whether each is inherited."""
    for name in dir(owner):
        if name.startswith("_"):
            continue
        source = next((base for base in owner.__mro__ if name in vars(base)), None)
        if source is None or str(source.__module__).split(".")[0] != package:
            continue
        thing = vars(source)[name]
        if not isinstance(thing, FunctionType | classmethod | staticmethod | property):
            if not hasattr(thing, "__get__") and not inspect.isclass(thing):
                continue  # a constant
            try:
                value = getattr(owner, name)
            except Exception:
                continue  # a descriptor that works on instances only and has no docstring to show
            thing = value if inspect.isclass(value) else thing  # accessors such as pandas.Series.str show a class
            if inspect.isclass(thing) and str(thing.__module__).partition(".")[0] != package:
                continue
        yield name, thing, source is not owner


def _docstring(thing: object) -> str:
    """Return an object's own docstring, not that of its type."""
    doc = getattr(thing, "__doc__", None)
    inherited = not inspect.isclass(thing) and doc == type(thing).__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) and not inherited else ""
