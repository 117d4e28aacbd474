"""WRITING COMMANDS → CASES: what each starts from, what must hold after a kill, and after it was run once more."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import longtail as lt
from longtail import whole
from longtail.data.dataset import Dataset
from longtail.data.formats import load, write
from longtail.folder import read_config, read_evaluations, write_config
from longtail.index import Index
from longtail.signatures import make_key, sign

TEXTS = ["word3 filler1", "word7"]


@dataclass(frozen=True)
class Case:
    """A command in a folder that was made ready for it, and what must hold after a kill and after the next run."""

    arguments: list[str]
    prepare: Callable[[Path], None]
    killed: Callable[[Path, str], Any]  # sees what the command told before it was killed
    again: Callable[[Path, int, str, Any], None]  # exit code and words of the next run, and what `killed` returned
    instead: Callable[[], None] | None = None  # of a command line


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
    half = [
        path for path in place.rglob(".*") if path.name.endswith(".unfinished") or whole.TEMPORARY.fullmatch(path.name)
    ]
    assert not half, f"left over: {half}"
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


def nothing(_place: Path, _told: str) -> Any:
    """What was not finished is not there, or its own reader refuses it."""


def bench_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    lines = [json.loads(line) for line in (place / "s.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "error" not in line]) == 1
    clean(place, "data", "s.toml", "s.jsonl", "s.md")


def posted() -> None:
    """Add a label over HTTP, as a worker of the service does, and say so when it is acknowledged."""
    from hostile.asks import asked

    from longtail.serve.app import create_app
    from longtail.serve.settings import Settings

    service = create_app(Settings((Path("run"),)))
    body = json.dumps({"labels": [{"text": "green parrot"}]}).encode()

    async def once() -> int:
        async with service._lifespan(service.app):
            return await asked(service, "POST", "/v1/labels", body)

    assert asyncio.run(once()) == 200
    sys.stderr.write("added\n")


def texts(place: Path) -> None:
    model(place)
    (place / "texts.txt").write_text("".join(f"word{n} filler1\n" for n in range(9)))


def answered(place: Path, told: str) -> Any:
    """Answers are whole or not there: one file, or a folder of shards."""
    found = [place / "answers.jsonl"] if (place / "answers.jsonl").exists() else sorted(place.glob("answers/part-*"))
    assert found or "wrote" not in told
    assert not found or sum(len(file.read_text().splitlines()) for file in found) == 9


def answer_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0 or (code == 3 and "exists already" in words), words
    answered(place, "wrote")
    clean(place, "data", "run", "texts.txt", *(path.name for path in place.glob("answers*")))


def after_evaluate(place: Path, told: str) -> Any:
    sound(place, 30)
    assert len(read_evaluations(place / "run")) >= int("kept with" in told)


def evaluate_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    sound(place, 30)
    assert len(read_evaluations(place / "run")) == 1
    clean(place, "data", "run")


def after_written(place: Path, told: str) -> Any:
    assert (place / "out").exists() or "wrote" not in told
    if (place / "out").exists():
        load(place / "out")


def written_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0 or (code == 3 and ("exists already" in words or "is here already" in words)), words
    clean(place, "data", "out")


def keyed(place: Path) -> None:
    model(place)
    make_key(place / "key")


def after_sign(place: Path, told: str) -> Any:
    sound(place, 30)
    if "signed by" in told:
        Index.load(place / "run", trusted=[place / "key.pub"])


def sign_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    after_sign(place, "signed by")
    clean(place, "data", "run", "key", "key.pub")


def keygen_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0 or (code == 3 and "exists already" in words), words
    sign(place / "run", place / "key")
    after_sign(place, "signed by")
    clean(place, "data", "run", "key", "key.pub")


def report_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    assert "</html>" in (place / "out.html").read_text()
    clean(place, "data", "run", "out.html")


def littered(place: Path) -> None:
    model(place)
    for name in ("run/.config.json.0123456789ab.tmp.json", "run/index_00ff.safetensors", ".run.0123456789ab.tmp"):
        (place / name).write_text("half")


def doctor_again(place: Path, code: int, words: str, _before: Any) -> None:
    assert code == 0, words
    sound(place, 30)
    clean(place, "data", "run")


def outdated(place: Path) -> None:
    """A folder as schema 3 was: scores by words were one field of the recipe."""
    model(place)
    config = read_config(place / "run")
    recipe = dict(config["recipe"])
    (recipe["lexical"],) = recipe.pop("voices")
    kept = {name: config[name] for name in ("labels", "points", "dataset", "files")}
    write_config(place / "run", {"schema": 3, "recipe": recipe, **kept})


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
    "posted": Case([], labelled, after_add, add_again, posted),
    "linear": Case([*TRAIN[:1], "linear", *TRAIN[2:]], data, after_train, train_again),
    "predict": Case(["predict", "run", "texts.txt", "--out", "answers.jsonl"], texts, answered, answer_again),
    "predict folder": Case(["predict", "run", "texts.txt", "--out", "answers"], texts, answered, answer_again),
    "evaluate": Case(["evaluate", "run", "--data", "data"], model, after_evaluate, evaluate_again),
    "augment": Case(["augment", "data", "out"], data, after_written, written_again),
    "split": Case(["data", "split", "data", "out"], data, after_written, written_again),
    "graph": Case(["graph", "build", "data", "--out", "out"], data, nothing, written_again),
    "sign": Case(["sign", "run", "--key", "key"], keyed, after_sign, sign_again),
    "keygen": Case(["keygen", "key"], model, nothing, keygen_again),
    "report": Case(["report", "run", "--data", "data", "--out", "out.html"], model, nothing, report_again),
    "doctor": Case(["doctor", "run"], littered, nothing, doctor_again),
    "upgrade": Case(["upgrade", "run"], outdated, nothing, doctor_again),
    "bench": Case(["bench", "s.toml"], suite, nothing, bench_again),
}
