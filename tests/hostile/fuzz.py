"""SEED → DAMAGED INPUTS: models, data files, requests and arguments; each is refused in one line, or used.

As a program (`make fuzz`) it prints, as JSON, how many inputs of each kind were tried and how they ended. Every input
depends on (seed, kind, number) alone; each kind runs in a process of its own, which is started again behind an input
that ended it or that took too long.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from data.test_fuzz import canonical, damage, damaged, seeds, sound
from hostile.kinds import QUERIES, VALUES
from serve.conftest import ANIMALS
from serve.double import Double

import longtail as lt
from longtail.artefact import build_artefact
from longtail.cli import main as command_line
from longtail.data.check import check
from longtail.data.dataset import Dataset
from longtail.data.formats import load, write
from longtail.errors import DataError, LongtailError
from longtail.folder import _seal, checksum, read_config
from longtail.index import Index
from longtail.serve.app import create_app
from longtail.serve.settings import Settings

HERE = Path(__file__).resolve().parent
Case = Callable[[random.Random], str]  # tries one input and says how it ended; anything wrong is an exception
RECIPES = ("knn", "frugal")  # whose folders are damaged
PATIENCE, SETUP = 120, 1800  # seconds that one input may take, and what comes before the first
SHARES = {"bodies": 0.55, "readers": 0.3, "models": 0.1, "arguments": 0.05}
STATUSES = {200, 400, 403, 404, 405, 409, 413, 415, 422}
BODIES: list[tuple[str, Any]] = [
    ("POST /v1/predict", {"texts": ["red cat", ""], "ids": [1, "b"], "k": 3, "threshold": 0.1, "allow": [1],
                          "deny": [0], "model": "animals", "details": True}),
    ("POST /v1/predict", {"texts": ["old dog"], "decide": "bins:0.9", "probabilities": False}),
    ("POST /v1/explain", {"text": "red cat", "label": 0, "model": "animals"}),
    ("POST /v1/labels", {"labels": [{"text": "blue parrot", "raw_id": "7"}, {"text": "b", "raw_id": "8"}]}),
    ("POST /v1/labels", {"labels": [{"text": "green parrot"}]}),
    ("DELETE /v1/labels", {"labels": [3, {"id": 2}]}),
    ("POST /v1/labels/undo", {}),
]  # fmt: skip
ODD = [*VALUES.values(), -0.0, 2**31, 2**63, 1e308, "", "\u2028", "x" * 3000, [], {}, [[]], False, "bins:2"]
PATHS = ["data", "run", "data/train.jsonl", "run/config.json", "texts.txt", "new/out", "new", "nowhere", "", "-", ".",
         "/", "a" * 300, "é\u202e", "x.csv", "x.parquet", "\udcff"]  # fmt: skip
WORDS = ["0", "1", "5", "-1", "1e9", "nan", "inf", "0.5", "2,3", "a,b", "true", "knn", "knn+gandalf", "knn+", "astek",
         "+", "text", "labels", "id", "jsonl", "csv", "auto", "exact", "ivf", "test", "train",
         "lexical.neighbours=2", "=", "a=", "seed=x", "voices.0=1", "labels=9" * 50, "bins:0.9", "global", "int8",
         "ids", "names", ";", "tab"]  # fmt: skip
COMMANDS = [
    "data info data", "data check data", "data convert data new/out --format csv", "data split data new/out",
    "data formats", "train knn --data data --out new/out", "predict run texts.txt", "recipes",
    "evaluate run --data data --split test", "graph build data --out new/graph", "graph show data --label 1",
    "augment data --out new/more", "explain run word3",
    "compare run run --data data", "labels add run texts.txt", "labels remove run 3", "labels undo run",
    "labels list run", "labels check run", "index run", "doctor run", "sign run --key new/key", "keygen new/key",
    "report run", "nothing", "--version",
]  # fmt: skip


@contextmanager
def models(place: Path) -> Iterator[Case]:
    """Damage a file of a model folder; most of the time its checksum fits."""
    from small import board, short  # torch, which other kinds do without

    for name in RECIPES:
        lt.fit(short(name), board(60)).save(place / name)
        Index.load(place / name).add(["blue parrot"])
        build_artefact(place / name, search="ivf", recall=0.5)
    folders = {name: shutil.copytree(place / name, place / f"{name}-tried") for name in RECIPES}

    def case(chance: random.Random) -> str:
        name = chance.choice(sorted(folders))
        folder, good = folders[name], place / name
        file = chance.choice(sorted(path.name for path in good.iterdir()))
        try:
            if file == "config.json" and chance.random() < 0.8:
                seal(folder, odd(read_config(good), chance))
            else:
                (folder / file).write_bytes(damaged((good / file).read_bytes(), chance))
                config = read_config(good)
                if file in config["files"] and chance.random() < 0.9:
                    config["files"][file] = checksum(folder / file)
                    seal(folder, config)
            index = Index.load(folder)
            top = index.predict(QUERIES, k=3)
            scores = top.scores[top.labels >= 0]
            assert (scores == scores).all() and (abs(scores) < float("inf")).all(), "not finite"
            assert ((top.labels >= -1) & (top.labels < len(index.labels))).all(), "labels that do not exist"
            return "used"
        except LongtailError as reason:
            return one_line(reason)
        finally:
            for changed in {file, "config.json"}:
                shutil.copyfile(good / changed, folder / changed)

    yield case


def seal(folder: Path, config: Any) -> None:
    """Write config.json with a seal that fits, whatever it holds."""
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name != "checksum"}
        config["checksum"] = _seal(config)
    (folder / "config.json").write_text(json.dumps(config))


def one_line(reason: LongtailError) -> str:
    """Refusals are one line."""
    assert "\n" not in str(reason), f"several lines: {reason}"
    return "refused"


@contextmanager
def readers(place: Path) -> Iterator[Case]:
    """Damage a file of a data set, in every format."""
    cases = seeds(place / "seeds")
    everything = [path for paths in cases.values() for path in paths]
    shutil.copytree(place / "seeds", place / "copies")

    def case(chance: random.Random) -> str:
        name = chance.choice(sorted(cases))
        original = chance.choice(cases[name])
        victim = place / "copies" / name / original.name
        damage(victim, chance, everything)
        try:
            if chance.random() < 0.1:
                check(victim.parent)
            data = load(victim.parent)
            sound(data)
            if not name.startswith("arrow"):
                canonical(data)
            return "used"
        except DataError as reason:
            return one_line(reason)
        finally:
            if victim.is_dir():
                victim.rmdir()
            shutil.copyfile(original, victim)

    yield case


def odd(value: Any, chance: random.Random) -> Any:
    """Put something odd somewhere into a JSON value."""
    root: dict[str, Any] = {"": copy.deepcopy(value)}
    holder, place = root, ""
    while isinstance(holder[place], dict | list) and holder[place] and chance.random() < 0.8:
        holder = holder[place]
        place = chance.choice(sorted(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    way = chance.random()
    if way < 0.1 and holder is not root:
        del holder[place]
    elif way < 0.2 and isinstance(holder, dict) and holder is not root:
        holder[chance.choice(["k", "texts", "\ud800", "", "x" * 200, "id"])] = chance.choice(ODD)
    elif way < 0.3:
        many = [2, 3] if isinstance(holder[place], dict | list) else [2, 3, 1001]  # never many of many
        holder[place] = [holder[place]] * chance.choice(many)
    else:
        holder[place] = chance.choice(ODD)
    return root[""]


@contextmanager
def bodies(_: Path) -> Iterator[Case]:
    """Send damaged bodies to every path of the service, without a network."""
    service = create_app(Settings((Path("run"),)), indexes=(Double("animals", ANIMALS),))
    loop = asyncio.new_event_loop()

    async def ask(method: str, path: str, body: bytes) -> int:
        sent = list[dict[str, Any]]()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(messages, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": headers, "http_version": "1.1", "scheme": "http", "root_path": "",
                 "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
        await service(scope, receive, send)
        return int(sent[0]["status"])

    def case(chance: random.Random) -> str:
        route, body = chance.choice(BODIES)
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            body = odd(body, chance)
        content = json.dumps(body).encode()
        if chance.random() < 0.4:
            content = damaged(content, chance)
        status = loop.run_until_complete(ask(*route.split(), content))
        assert status in STATUSES, f"{route}: {status} for {content[:300]!r}"
        model = service.registry.models["animals"].index
        if len(model.labels) > 200:  # what was added would make it slow
            model.__init__("animals", ANIMALS)
        return "used" if status == 200 else "refused"

    with patch("longtail.serve.registry.WATCH_INTERVAL", 3600):
        lifespan = service._lifespan(service.app)
        loop.run_until_complete(lifespan.__aenter__())
        try:
            yield case
        finally:
            loop.run_until_complete(lifespan.__aexit__(None, None, None))
            loop.close()


@contextmanager
def arguments(place: Path) -> Iterator[Case]:
    """Give every command (but those that serve, or run for long) arguments of all sorts."""
    from small import board, short

    flags = json.loads((HERE.parent / "golden" / "flags.json").read_text())
    base = place / "base"
    train = board(40)
    write(Dataset(train.labels, {"train": train, "test": train.named("test")}, "board"), base / "data", "jsonl")
    lt.fit(short("knn"), train).save(base / "run")
    (base / "texts.txt").write_text("word3 filler1\n\nname2\n")

    def value(chance: random.Random) -> str:
        return chance.choice(PATHS if chance.random() < 0.6 else WORDS)

    def case(chance: random.Random) -> str:
        given = chance.choice(COMMANDS).split()
        line = " ".join(["longtail", *given])
        name = max((name for name in flags if line.startswith(name)), key=len, default="")
        options = [option for option in flags.get(name, []) if option.startswith("-")]
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            at = chance.randrange(1, len(given) + 1)
            way = chance.random()
            if way < 0.4:
                given[at : at + 1] = [value(chance)]
            elif way < 0.5:
                del given[at : at + 1]
            else:
                given += [chance.choice([*options, "--nope"]), *([value(chance)] if chance.random() < 0.8 else [])]
        here = place / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(base, here)
        code = called(given, here)
        assert code in (0, 2, 3, 4, 5), f"exit code {code} of {given}"
        return "used" if code == 0 else "refused"

    yield case


def called(given: list[str], here: Path) -> Any:
    """Run a command line in a folder and return its exit code; what is no clean end is an exception."""
    streams = io.TextIOWrapper(io.BytesIO(b"word3\n"), "utf-8"), io.StringIO(), io.StringIO()
    before, handler = Path.cwd(), signal.getsignal(signal.SIGTERM)
    os.chdir(here)
    try:
        with (
            redirect_stdout(streams[1]),
            redirect_stderr(streams[2]),
            patch.multiple(sys, argv=["longtail", *given], stdin=streams[0]),
        ):
            command_line()
    except SystemExit as ended:
        return ended.code or 0
    except BaseException as reason:
        raise AssertionError(f"{type(reason).__name__}: {reason} of {given}") from reason
    finally:
        os.chdir(before)
        signal.signal(signal.SIGTERM, handler)
    return 0


KINDS = {"bodies": bodies, "readers": readers, "models": models, "arguments": arguments}


def tried(kind: str, seed: int, start: int, count: int, place: Path, at: Callable[[int], None]) -> Iterator[str]:
    """Try inputs one after the other; `at` hears the number of each before it begins. Yields how it ended."""
    with patch.object(os, "fsync", lambda _: None), KINDS[kind](place) as case:
        for number in range(start, start + count):
            at(number)
            chance = random.Random(f"{seed}:{kind}:{number}")
            try:
                yield case(chance)
            except Exception as reason:
                yield f"wrong: {type(reason).__name__}: {str(reason)[:500]}"


def child(kind: str, seed: int, start: int, count: int) -> None:
    """Try inputs and write a line for each that ended badly, and the counts every second."""
    ends, told = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as place:

        def at(number: int) -> None:
            nonlocal told
            if time.monotonic() - told > 1 or number == start:
                told = time.monotonic()
                out.write(json.dumps({"at": number, **ends}) + "\n")
                out.flush()

        out = os.fdopen(os.dup(1), "w")
        for number, end in enumerate(tried(kind, seed, start, count, Path(place), at), start):
            if end.startswith("wrong"):
                out.write(json.dumps({"number": number, "wrong": end}) + "\n")
            ends[end.partition(":")[0]] += 1
        out.write(json.dumps({"at": start + count, **ends}) + "\n")
        out.flush()


def parent(kind: str, seed: int, count: int, until: float) -> dict[str, Any]:
    """Run a child until all inputs are tried, or the time is over; go on behind an input that ended it."""
    ends, wrong, start = Counter[str](), list[dict[str, Any]](), 0
    while start < count and time.monotonic() < until:
        command = [sys.executable, "-m", "hostile.fuzz", "--child", kind, str(seed), str(start), str(count - start)]
        with (
            tempfile.TemporaryFile() as out,
            subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as running,
        ):
            size, quiet, over = 0, time.monotonic(), False
            while running.poll() is None and not over:
                time.sleep(0.2)
                now = os.fstat(out.fileno()).st_size
                quiet = time.monotonic() if now != size else quiet
                patience = PATIENCE if now else SETUP
                size, over = now, time.monotonic() > until or time.monotonic() - quiet > patience
            running.kill()
            code = running.wait()
            out.seek(0)
            lines = [json.loads(line) for line in out.read().splitlines() if line.endswith(b"}")]
        wrong += [line for line in lines if "wrong" in line and "number" in line]
        last: dict[str, Any] = next((line for line in reversed(lines) if "at" in line), {"at": start})
        ends.update({name: value for name, value in last.items() if name != "at"})
        start = last["at"]
        if start < count and time.monotonic() < until:
            wrong.append({"number": f"{start} or soon after", "wrong": "hangs" if over else f"ended with {code}"})
            start += 1000
    return {"inputs": sum(ends.values()), **ends, "failures": wrong}


def main() -> None:
    """Try inputs of every kind and print how they ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10_000, help="Stop after so long, each kind after its share.")
    parser.add_argument("--kinds", nargs="+", choices=SHARES, default=[*SHARES])
    parser.add_argument("--child", nargs=4)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], *map(int, given.child[1:]))
        return
    sys.stderr.write(f"seed {given.seed}\n")
    found = {}
    total = sum(SHARES[kind] for kind in given.kinds)
    for kind in given.kinds:
        until = time.monotonic() + given.minutes * 60 / len(given.kinds)
        found[kind] = parent(kind, given.seed, max(1, int(given.inputs * SHARES[kind] / total)), until)
        sys.stderr.write(json.dumps({kind: found[kind]}) + "\n")
    count = sum(one["inputs"] for one in found.values())
    sys.stdout.write(json.dumps({"seed": given.seed, "inputs": count, "kinds": found}, indent=1) + "\n")
    sys.exit(any(one["failures"] for one in found.values()))


if __name__ == "__main__":
    main()
