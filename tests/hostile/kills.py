"""COMMAND → THE SAME COMMAND, killed before and after each of its file operations, and then run again.

As a program: `kills.py FOLDER COMMAND SHARE` runs the command once, forks a process for each kill, and prints one
JSON object: how many operations there are, how many kills were tried, and what went wrong.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hostile.writing import CASES, Case

import longtail.cli
from longtail import files, whole

OPERATIONS = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "ftruncate", "truncate", "write",
              "pwrite", "chmod", "link", "symlink")  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Layer:
    """Counts the file operations of this process, and kills it at one of them."""

    def __init__(self, at: int, before: bool) -> None:
        self.at, self.before, self.names = at, before, list[str]()

    def install(self) -> None:
        """Stand between the program and its files."""
        for name in OPERATIONS:
            self._wrap(os, name)
        self._wrap(os, "open", lambda _path, flags, *_, **__: bool(flags & WRITING))
        for module in (io, builtins):
            self._wrap(module, "open", lambda _path, mode="r", *_, **__: bool(set(mode) & set("wax+")))
        self._wrap(files, "save_file")
        self._wrap(pq, "write_table")
        self._wrap(pa, "OSFile", lambda _path, mode="r", *_, **__: "w" in mode)
        self._wrap(whole, "_exchange")

    def _wrap(self, module: object, name: str, counts: Callable[..., bool] = lambda *_, **__: True) -> None:
        real = getattr(module, name)

        def wrapped(*values: Any, **named: Any) -> Any:
            if not counts(*values, **named):
                return real(*values, **named)
            self.names.append(name)
            number = len(self.names)
            if number == self.at and self.before:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                given = real(*values, **named)
            finally:
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
            if isinstance(given, io.FileIO | io.BufferedIOBase | io.TextIOBase) and hasattr(given, "__dict__"):
                self._wrap(given, "write")  # each write into a file that was opened
            return given

        setattr(module, name, wrapped)


def forked(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do something in a process of its own: how it ended, and what it returned."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                answer.write(json.dumps(work()).encode())
                answer.flush()
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        answer.seek(0)
        raw = answer.read()
    return status, json.loads(raw) if raw else None


def command(case: Case, told: Path, layer: Layer | None = None) -> dict[str, Any]:
    """Run a command line, or what stands for one; what it says goes to a file."""
    handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if layer:
        layer.install()
    sys.argv = ["longtail", *case.arguments]
    code: Any = 0
    try:
        (case.instead or longtail.cli.main)()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    return {"code": code, "operations": [] if layer is None else list(layer.names)}


def ready(base: Path, place: Path) -> None:
    """Copy what a command starts from, and stand there."""
    shutil.copytree(base, place)
    (place / "tmp").mkdir()
    (place / "new.txt").write_text("green parrot\n")
    os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
    os.chdir(place)


def tried(case: Case, base: Path, place: Path, at: int, before: bool) -> str:
    """Kill a command at one operation, look at what is left, run it again, and look again: what went wrong, if any."""

    def first() -> Any:
        ready(base, place)
        return command(case, place.with_suffix(".told"), Layer(at, before))

    def look() -> Any:
        ready_again(place)
        return case.killed(place, place.with_suffix(".told").read_text())

    def second() -> Any:
        ready_again(place)
        return command(case, place.with_suffix(".again"))

    status, _ = forked(first)
    if not os.WIFSIGNALED(status):
        return f"it was not killed: {place.with_suffix('.told').read_text()}"
    status, seen = forked(lambda: judged(look))
    if status or seen[0]:
        return f"after the kill: {seen}"
    status, ended = forked(second)
    if status:
        return f"the next run: {status}: {place.with_suffix('.again').read_text()}"
    words = place.with_suffix(".again").read_text()
    status, after = forked(lambda: judged(lambda: case.again(place, ended["code"], words, seen[1])))
    shutil.rmtree(place, ignore_errors=True)
    return f"after the next run: {after}" if status or after[0] else ""


def warmed(case: Case, base: Path, place: Path) -> None:
    """Run a command once in the process that forks: what it imports and compiles is there in each child."""
    told, handler = [os.dup(1), os.dup(2)], signal.getsignal(signal.SIGTERM)
    ready(base, place)
    command(case, place.with_suffix(".told"))
    for number, handle in enumerate(told, 1):
        os.dup2(handle, number)
        os.close(handle)
    signal.signal(signal.SIGTERM, handler)
    assert threading.active_count() == 1, "a fork would lose what another thread does"


def ready_again(place: Path) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
    os.chdir(place)


def judged(look: Callable[[], Any]) -> tuple[str, Any]:
    """Return what was wrong, and what was seen."""
    try:
        return "", look()
    except Exception as reason:
        return f"{type(reason).__name__}: {reason}", None


def main(folder: Path, name: str, share: int) -> None:
    """Try one kill of `share` at every operation of a command."""
    case, base = CASES[name], folder / "base"
    base.mkdir()

    def whole_run() -> Any:
        ready(base, folder / "all")
        return command(case, folder / "all.told", Layer(0, True))

    forked(lambda: case.prepare(base))
    warmed(case, base, folder / "warm")
    status, done = forked(whole_run)
    assert status == 0 and done["code"] == 0, (folder / "all.told").read_text()
    kills = [(at, before) for at in range(1, len(done["operations"]) + 1) for before in (True, False)]
    wrong = {}
    for number, (at, before) in enumerate(kills[::share]):
        ended = tried(case, base, folder / f"run{number}", at, before)
        if ended:
            wrong[f"{'before' if before else 'after'} {at}: {done['operations'][at - 1]}"] = ended
    found = {"operations": len(done["operations"]), "kills": len(kills[::share]), "wrong": wrong}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
