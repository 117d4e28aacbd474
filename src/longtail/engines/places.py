"""NAMES → FILES, here or far away: a folder of shards on a disk, or behind an address such as s3://bucket/folder.

Addresses are read by pyarrow's file systems (s3, gs, hdfs, file) or, for others, by fsspec's. What is far away is
fetched to a temporary file before it is read, and sent under a temporary name that is changed when all of it is there.
"""

from __future__ import annotations

import fnmatch
import json
import posixpath
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from longtail.errors import DataError, MissingExtra, one_line
from longtail.whole import sweep, temporary, whole_file

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
PATTERN = re.compile(r"[*?\[]")
HIDDEN = re.compile(r"(^|/)[._]")  # names that no engine takes for data


class Entry(NamedTuple):
    """A file of a place."""

    name: str  # below the place, with / between folders
    size: int
    time: int  # of its last change, in nanoseconds; 0 where nobody knows


@dataclass(frozen=True)
class Place:
    """A folder, by its whole path or by address: every process and machine means the same one."""

    address: str

    @classmethod
    def of(cls, name: str) -> Place:
        """Read an address, or a path, which may be relative."""
        return cls(name if ADDRESS.match(name) else str(Path(name).resolve()))

    @cached_property
    def _system(self) -> tuple[fs.FileSystem, str]:
        """Open the file system."""
        if not ADDRESS.match(self.address):
            return fs.LocalFileSystem(), self.address
        try:
            system, path = fs.FileSystem.from_uri(self.address)
        except pa.ArrowInvalid:  # not one of pyarrow's own
            return _fsspec(self.address)
        except (OSError, pa.ArrowException) as reason:
            raise DataError(one_line(reason), file=self.address, remedy="check the address and the access") from None
        return system, path

    @property
    def folder(self) -> Path | None:
        """The folder on this machine's disks; None of one that is elsewhere."""
        system, path = self._system
        return Path(path) if isinstance(system, fs.LocalFileSystem) else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connection, which belongs to a process."""
        return {"address": self.address}

    def _path(self, name: str) -> str:
        """Return the whole path of a file."""
        return posixpath.join(self._system[1], name)

    def entries(self, *, deep: bool = True) -> list[Entry]:
        """List the files by name, hidden ones too; with `deep` those of the folders inside as well."""
        system, root = self._system
        if system.get_file_info(root).type != fs.FileType.Directory:
            return []
        found = system.get_file_info(fs.FileSelector(root, recursive=deep))
        files = [info for info in found if info.type == fs.FileType.File]
        return sorted(
            (Entry(posixpath.relpath(info.path, root), info.size, info.mtime_ns or 0) for info in files),
            key=lambda entry: entry.name,
        )

    def entry(self, name: str) -> Entry:
        """Return the facts of one file."""
        info = self._system[0].get_file_info(self._path(name))
        if info.type != fs.FileType.File:
            raise DataError("not found", file=f"{self.address}/{name}", remedy="repeat the command")
        return Entry(name, info.size, info.mtime_ns or 0)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._system[0].delete_file(self._path(name))

    def sweep(self) -> None:
        """Remove what killed writers left on this machine's disks; a file that is being written stays."""
        if self.folder is not None and self.folder.is_dir():
            for folder in (self.folder, *(entry for entry in self.folder.rglob("*") if entry.is_dir())):
                sweep(folder)

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Yield a file as one of this machine's disks."""
        if self.folder is not None:
            yield self.folder / name
            return
        with temporary("fetched") as folder:
            path = folder / posixpath.basename(name)
            with self._system[0].open_input_stream(self._path(name)) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            yield path

    @contextmanager
    def whole(self, name: str) -> Iterator[Path]:
        """Yield a path to write to; the file is there, whole, when the block succeeds."""
        if self.folder is not None:
            with whole_file(self.folder / name) as partial:
                yield partial
            return
        with temporary("sent") as folder:
            path = folder / posixpath.basename(name)
            yield path
            self._send(path, name)

    def _send(self, path: Path, name: str) -> None:
        """Send a file under a temporary name, and rename it."""
        system, target = self._system[0], self._path(name)
        parent, own = posixpath.split(target)
        partial = posixpath.join(parent, f"_{own}.{secrets.token_hex(6)}.tmp")
        system.create_dir(parent, recursive=True)
        with path.open("rb") as file, system.open_output_stream(partial) as sink:
            shutil.copyfileobj(file, sink, 1 << 20)
        system.move(partial, target)

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON object; None where there is none, or none that can be read."""
        if self._system[0].get_file_info(self._path(name)).type != fs.FileType.File:
            return None
        with self._system[0].open_input_stream(self._path(name)) as file:
            try:
                value = json.loads(file.read())
            except ValueError:
                return None
        return value if isinstance(value, dict) else None

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON object, whole or not at all."""
        with self.whole(name) as path:
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _fsspec(address: str) -> tuple[fs.FileSystem, str]:
    """Open a file system of fsspec."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingExtra("fsspec", "remote") from None
    try:
        system, path = url_to_fs(address)
    except (ValueError, ImportError) as reason:
        raise DataError(one_line(reason), file=address, remedy="install what reads such addresses") from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def is_many(name: str) -> bool:
    """Return whether a name is an address or a pattern of several files.

    >>> [is_many(name) for name in ("texts.csv", "texts/*.csv", "s3://bucket/texts.csv")]
    [False, True, True]
    """
    return bool(ADDRESS.match(name)) or (bool(PATTERN.search(name)) and not Path(name).exists())


def shards(source: str) -> tuple[Place, list[Entry]]:
    """Find the files that a pattern, a folder or the name of one file means, and the folder that they are in."""
    root, pattern = source, "*"
    if special := PATTERN.search(source):
        cut = source.rfind("/", 0, special.start())
        root, pattern = (source[: cut + 1] or "/", source[cut + 1 :]) if cut >= 0 else (".", source)
    place = Place.of(root)
    found = place.entries(deep="/" in pattern)
    if not found and not special:  # one file
        root, _, pattern = source.rpartition("/")
        place = Place.of(root or ("/" if source.startswith("/") else "."))
        found = [entry for entry in place.entries(deep=False) if entry.name == pattern]
    deep = "**" in pattern
    chosen = [
        entry for entry in found
        if not HIDDEN.search(entry.name) and (deep or entry.name.count("/") == pattern.count("/"))
        and fnmatch.fnmatchcase(entry.name, pattern.replace("**/", "*"))
    ]  # fmt: skip
    if not chosen:
        raise DataError("no such files", file=source, remedy="give a folder, or a pattern such as 'texts/*.parquet'")
    return place, chosen
