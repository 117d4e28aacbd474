"""SEED → DAMAGED REQUESTS AND COMMAND LINES: each is answered, or refused as HTTP and a shell would have it."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import json
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import typer.main
from data.test_fuzz import damaged
from hostile.inputs import SUITE, Case, odd
from serve.conftest import ANIMALS
from serve.double import Double

import longtail as lt
from longtail.cli import main as command_line
from longtail.data.dataset import Dataset
from longtail.data.formats import write
from longtail.index import Index
from longtail.serve.app import create_app
from longtail.serve.settings import Settings
from longtail.signatures import make_key

FLAGS = Path(__file__).resolve().parent.parent / "golden" / "flags.json"
STATUSES = {200, 400, 403, 404, 405, 409, 413, 415, 422, 507}
CODES = {0, 2, 3, 4, 5}
VECTORS = base64.b64encode(np.ones(8, "<f4").tobytes()).decode()
BODIES: list[tuple[str, Any]] = [
    ("POST /v1/predict", {"texts": ["red cat", ""], "ids": [1, "b"], "k": 3, "threshold": 0.1, "allow": [1],
                          "deny": [0], "model": "animals", "details": True}),
    ("POST /v1/predict", {"texts": ["old dog"], "decide": "bins:0.9", "probabilities": False}),
    ("POST /v1/explain", {"text": "red cat", "label": 0, "model": "animals"}),
    ("POST /v1/labels", {"labels": [{"text": "blue parrot", "raw_id": "7"}, {"text": "b", "raw_id": "8"}]}),
    ("POST /v1/labels", {"labels": [{"text": "green parrot"}]}),
    ("DELETE /v1/labels", {"labels": [3, {"id": 2}]}),
    ("POST /v1/labels/undo", {}),
    ("POST /v1/feedback", {"text": "red cat", "label": 0, "good": True, "model": "board"}),
    ("POST /v1/predict", {"texts": ["word3 filler1", ""], "k": 2, "model": "board", "details": True, "allow": [3, 4]}),
    ("POST /v1/explain", {"text": "word3 filler1", "label": 3, "model": "board"}),
    ("POST /v1/labels", {"labels": [{"text": "blue parrot"}], "model": "board"}),
    ("DELETE /v1/labels", {"labels": [3], "model": "board"}),
    ("POST /v1/labels/undo", {"model": "board"}),
    ("POST /v1/nearest", {"hash": "", "vectors": VECTORS, "k": 2, "part": 0, "parts": 1, "allow": None}),
]  # fmt: skip
PATHS = ["data", "run", "data/train.jsonl", "run/config.json", "texts.txt", "new/out", "new", "nowhere", "", "-", ".",
         "/", "a" * 300, "é\u202e", "x.csv", "x.parquet", "\udcff", "s.toml", "key", "key.pub"]  # fmt: skip
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
    "labels list run", "labels check run", "index run", "doctor run", "sign run --key key", "keygen new/key",
    "report run", "nothing", "--version", "graph fit data", "bench s.toml", "bench s.toml --list", "upgrade run",
    "serve run --port 0", "demo --serve --port 0 --out run", "train linear --data data --out new/out",
    "train knn --data data/train.jsonl --out new/out --continue-from run",
]  # fmt: skip


@contextmanager
def bodies(place: Path) -> Iterator[Case]:
    """Send damaged bodies to every path of the service, of a model and of what stands for one, without a network."""
    from small import board, short

    folder = place / "board"
    lt.fit(short("knn"), board(60)).save(folder)
    settings = Settings((Path("run"), folder), feedback=place / "feedback.jsonl")
    service = create_app(settings, indexes=(Double("animals", ANIMALS), Index.load(folder)))
    models = service.registry.models
    routes = [(route, body | {"hash": models["board"].index.hash} if "hash" in body else body)
              for route, body in BODIES]  # fmt: skip
    loop = asyncio.new_event_loop()

    def case(chance: random.Random) -> str:
        route, body = chance.choice(routes)
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            body = odd(body, chance)
        content = json.dumps(body).encode()
        if chance.random() < 0.4:
            content = damaged(content, chance)
        status = loop.run_until_complete(asked(service, *route.split(), content))
        assert status in STATUSES, f"{route}: {status} for {content[:300]!r}"
        if len(models["animals"].index.labels) > 200:  # what was added would make it slow
            models["animals"].index = Double("animals", ANIMALS)
        if len(models["board"].index.labels) > 100:
            (folder / "labels.journal.jsonl").unlink()
            models["board"].index = Index.load(folder)
        return "used" if status == 200 else "refused"

    with patch("longtail.serve.registry.WATCH_INTERVAL", 3600):
        lifespan = service._lifespan(service.app)
        loop.run_until_complete(lifespan.__aenter__())
        try:
            yield case
        finally:
            loop.run_until_complete(lifespan.__aexit__(None, None, None))
            loop.close()


async def asked(service: Any, method: str, path: str, body: bytes) -> int:
    """Send a request to an app and return the status of its answer."""
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


@contextmanager
def arguments(place: Path) -> Iterator[Case]:
    """Give every command arguments of all sorts; a service opens its models and ends, and jobs of a suite fail."""
    from small import board, short

    flags = json.loads(FLAGS.read_text())
    base = place / "base"
    train = board(40)
    write(Dataset(train.labels, {"train": train, "test": train.named("test")}, "board"), base / "data", "jsonl")
    lt.fit(short("knn"), train).save(base / "run")
    (base / "texts.txt").write_text("word3 filler1\n\nname2\n")
    (base / "s.toml").write_text(SUITE.replace("other", "nowhere"))
    make_key(base / "key")

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
        assert code in CODES or (code == 1 and "bench" in given), f"exit code {code} of {given}"
        return "used" if code == 0 else "refused"

    with (
        patch("longtail.serve.run.serve", served),
        patch("longtail.bench.lines.run_jobs", lambda jobs, *_: [{"error": "not run"} for _ in jobs]),
        patch("longtail.cli.demo._demo", lambda *_: None),
        patch.object(typer.main, "get_command", functools.cache(typer.main.get_command)),  # made anew, it takes 50 ms
    ):
        yield case


def served(settings: Settings, listener: socket.socket, *, started: Callable[[], None]) -> int:
    """Open the models of a service and stop."""
    listener.close()
    create_app(settings)
    started()
    return 0


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
