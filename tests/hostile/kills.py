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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import longtail as lt
import longtail.cli
from longtail import files, whole
from longtail.data.dataset import Dataset
from longtail.data.formats import load, write
from longtail.folder import read_config
from longtail.index import Index

OPERATIONS = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "ftruncate", "pwrite", "chmod")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
TEXTS = ["word3 filler1", "word7"]


class Layer:
    """Counts the file operations of this process, and kills it at one of them."""

    def __init__(self, at: int, before: bool) -> None:
        self.at, self.before, self.names = at, before, list[str]()

    def install(self) -> None:
        """Stand between the program and its files."""
        for name in (
            "replace",
            "rename",
            "unlink",
            "remove",
            "rmdir",
            "mkdir",
            "fsync",
            "ftruncate",
            "pwrite",
            "chmod",
        ):
            self._wrap(os, name)
        self._wrap(os, "open", lambda _path, flags, *_, **__: bool(flags & WRITING))
        for module in (io, builtins):
            self._wrap(module, "open", lambda _path, mode="r", *_, **__: bool(set(mode) & set("wax+")))
        self._wrap(files, "save_file")
        self._wrap(pq, "write_table")
        self._wrap(pa, "OSFile", lambda _path, mode="r", *_, **__: "w" in mode)
        self._wrap(whole, "_exchange")

    def _wrap(self, module: Any, name: str, counts: Callable[..., bool] = lambda *_, **__: True) -> None:
        real = getattr(module, name)

        def wrapped(*values: Any, **named: Any) -> Any:
            if not counts(*values, **named):
                return real(*values, **named)
            self.names.append(name)
            number = len(self.names)
            if number == self.at and self.before:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*values, **named)
            finally:
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

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


def command(arguments: list[str], told: Path, layer: Layer | None = None) -> dict[str, Any]:
    """Run a command line; what it says goes to a file."""
    handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if layer:
        layer.install()
    sys.argv = ["longtail", *arguments]
    code: Any = 0
    try:
        longtail.cli.main()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    return {"code": code, "operations": [] if layer is None else layer.names}


@dataclass(frozen=True)
class Case:
    """A command in a folder that was made ready for it, and what must hold after a kill and after the next run."""

    arguments: list[str]
    prepare: Callable[[Path], None]
    killed: Callable[[Path, str], Any]  # sees what the command told before it was killed
    again: Callable[[Path, int, str, Any], None]  # exit code and words of the next run, and what `killed` returned


def data(place: Path) -> None:
    from small import board  # torch, which the process that forks does without

    train = board(40)
    write(Dataset(train.labels, {"train": train, "test": train.named("test")}, "board"), place / "data", "jsonl")


def model(place: Path, recipe: str = "knn") -> None:
    from small import short

    data(place)
    lt.fit(short(recipe), load(place / "data").train).save(place / "run")


def labelled(place: Path) -> None:
    model(place)
    Index.load(place / "run").add(["blue parrot"])


def sound(place: Path, labels: int | None = None) -> Index:
    """Open the model, ask it, and return it; nothing but its own files lie there."""
    index = Index.load(place / "run", verify=True)
    assert index.predict(TEXTS, k=2).labels.shape == (2, 2)
    assert labels is None or len(index.labels) == labels, f"{len(index.labels)} labels"
    return index


def clean(place: Path, *names: str) -> None:
    """Nothing is left over, in the folder, in the model or among temporary files."""
    found = sorted(path.name for path in place.iterdir() if path.name not in ("tmp", "new.txt"))
    assert found == sorted(names), f"left over: {found}"
    assert not list((place / "tmp").iterdir()), f"left over: {list((place / 'tmp').iterdir())}"
    if (place / "run").is_dir():
        own = {*read_config(place / "run")["files"], "config.json", "log.csv", "labels.journal.jsonl"}
        found = sorted(path.name for path in (place / "run").iterdir() if path.name not in own)
        assert not found, f"left over in the model: {found}"


def after_train(place: Path, told: str) -> Any:
    if "wrote" in told or (place / "run").exists():
        sound(place, 30)


def train_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0 or (code == 3 and "a finished model is here" in words), words
    sound(place, 30)
    clean(place, "data", "run")


def after_force(place: Path, _told: str) -> Any:
    assert "blue parrot" in sound(place, 31).labels.texts.tolist()


def force_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    after_force(place, words)
    clean(place, "data", "run")


def after_index(place: Path, told: str) -> Any:
    assert (sound(place, 30).served is not None) or "measured" not in told
    whole.check_target(place / "run", force=True)  # `train --force` is not refused


def index_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    assert sound(place, 30).served is not None
    clean(place, "data", "run")


def after_add(place: Path, told: str) -> Any:
    count = len(sound(place).labels)
    assert count == 32 if "added" in told else count in (31, 32)
    return count


def add_again(place: Path, code: int, words: str, before: Any) -> None:
    assert code == 0, words
    sound(place, before + 1)
    clean(place, "data", "run")


def after_remove(place: Path, told: str) -> Any:
    removed = sound(place, 31).removed
    assert removed == {3} if "removed" in told else removed in (frozenset(), {3})


def remove_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    assert sound(place, 31).removed == {3}
    clean(place, "data", "run")


def after_undo(place: Path, told: str) -> Any:
    count = len(sound(place).labels)
    assert count == 30 if "took back" in told else count in (30, 31)
    return count


def undo_again(place: Path, code: int, words: str, before: Any) -> None:
    assert code == 0 if before == 31 else (code == 3 and "no change" in words), words
    sound(place, 30)
    clean(place, "data", "run")


def after_convert(place: Path, told: str) -> Any:
    if "wrote" in told or (place / "out").exists():
        assert load(place / "out").fingerprint == load(place / "data").fingerprint


def convert_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0 or (code == 3 and "exists already" in words), words
    after_convert(place, "wrote")
    clean(place, "data", "out")


def converted(place: Path) -> None:
    data(place)
    write(load(place / "data"), place / "out", "csv")


def suite(place: Path) -> None:
    data(place)
    text = f'title = "s"\ndata = ["{place / "data"}"]\n[[run]]\nname = "knn"\nrecipe = "knn"\n'
    (place / "s.toml").write_text(text)


def after_bench(place: Path, _told: str) -> Any:
    return None


def bench_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    lines = [json.loads(line) for line in (place / "s.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "error" not in line]) == 1
    clean(place, "data", "s.toml", "s.jsonl", "s.md")


TRAIN = ["train", "knn", "--data", "data", "--out", "run"]
FRUGAL = ["train", "frugal", "--data", "data", "--out", "run", "--set", "training.epochs=2", "--set", "encoder.dim=8",
          "--set", "training.save_seconds=0", "--set", "lexical=null", "--set", "linear=null"]  # fmt: skip
CASES = {
    "train": Case(TRAIN, data, after_train, train_again),
    "train frugal": Case(FRUGAL, data, after_train, train_again),
    "force": Case([*TRAIN, "--force"], labelled, after_force, force_again),
    "index": Case(["index", "run"], lambda place: model(place, "frugal"), after_index, index_again),
    "add": Case(["labels", "add", "run", "new.txt"], labelled, after_add, add_again),
    "remove": Case(["labels", "remove", "run", "3"], labelled, after_remove, remove_again),
    "undo": Case(["labels", "undo", "run"], labelled, after_undo, undo_again),
    "convert": Case(["data", "convert", "data", "out"], data, after_convert, convert_again),
    "convert --force": Case(
        ["data", "convert", "data", "out", "--format", "jsonl", "--force"], converted, after_convert, convert_again
    ),
    "bench": Case(["bench", "s.toml"], suite, after_bench, bench_again),
}


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
        return command(case.arguments, place.with_suffix(".told"), Layer(at, before))

    def look() -> Any:
        ready_again(place)
        return case.killed(place, place.with_suffix(".told").read_text())

    def second() -> Any:
        ready_again(place)
        return command(case.arguments, place.with_suffix(".again"))

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
    command(case.arguments, place.with_suffix(".told"))
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
        return command(case.arguments, folder / "all.told", Layer(0, True))

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
