"""The plain installation has no torch: what it must do all the same, and what it says of the rest."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import ROOT
from small import board, small

from longtail.errors import MissingExtra
from longtail.pipeline import fit
from longtail.recipe import find_recipe

ABSENT = (
    "faiss", "huggingface_hub", "llvmlite", "matplotlib", "numba", "openpyxl", "rdflib",
    "sklearn", "tensorboard", "tokenizers", "torch", "transformers",
)  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({ABSENT}, None)); from longtail.cli import main; main()"
LIMIT = 500e6  # bytes of the plain installation
ITEMS = [f"{word} {name},{name}\n" for word in ("red", "old", "wild") for name in ("cat", "dog", "fox")]


def without(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import what the extras bring."""
    command = [sys.executable, "-c", WITHOUT, *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("light") / "items.csv"
    path.write_text("title,tags\n" + "".join(ITEMS))
    return path


def test_a_table_is_read_trained_on_and_predicted(table):
    run = table.parent / "knn"
    done = without("train", "knn", "--data", table, "--out", run, "--holdout", 0.2)
    assert done.returncode == 0, done.stderr
    answer = without("predict", run, "-", "--k", 1, stdin="a fox\n")
    assert json.loads(answer.stdout)["labels"][0]["text"] == "fox", answer.stderr


def test_a_bag_model_with_linear_classifiers_answers_alike(tmp_path):
    train = board(120)
    model = fit(small("frugal", blend=(0.3, 0.7)), train)
    model.save(tmp_path / "run")
    texts = train.texts.tolist()[:5]
    answer = without("predict", tmp_path / "run", "-", "--k", 3, stdin="\n".join(texts) + "\n")
    assert answer.returncode == 0, answer.stderr
    for line, wanted in zip(answer.stdout.splitlines(), model.predict(texts, k=3), strict=True):
        found = [(label["id"], label["score"]) for label in json.loads(line)["labels"]]
        assert [label for label, _ in found] == [label for label, _, _ in wanted]
        assert [score for _, score in found] == pytest.approx([score for _, _, score in wanted], abs=1e-5)


def test_what_is_missing_is_said_in_one_line(table):
    refused = without("train", "frugal", "--data", table, "--out", table.parent / "no")
    message = 'error: torch is not installed; run: pip install "longtail[train]"\n'
    assert (refused.returncode, refused.stderr) == (5, message)
    with (
        patch.dict(sys.modules, {"numba": None}),
        pytest.raises(MissingExtra, match=r'^numba is not installed; run: pip install "longtail\[linear\]"$'),
    ):
        find_recipe("linear").check()


def test_a_model_that_needs_torch_says_so(tmp_path):
    fit(small("xmlcnn", **{"training.epochs": 1}), board(100)).save(tmp_path / "run")
    refused = without("predict", tmp_path / "run", "-", stdin="a\n")
    assert (refused.returncode, refused.stderr.count("\n")) == (5, 1)
    assert 'torch is not installed; run: pip install "longtail[train]"' in refused.stderr


def test_no_extra_is_a_requirement():
    requirements = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[1]
    named = set(re.findall(r'"([a-z-]+)', requirements))
    assert not named & {name.replace("_", "-") for name in ABSENT}


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment(tmp_path):
    quiet = ("-m", "pip", "--disable-pip-version-check", "-q")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    here = {"env": environment, "cwd": tmp_path}
    subprocess.run([sys.executable, *quiet, "wheel", "--no-deps", "-w", tmp_path, ROOT], **here, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    before = _bytes(tmp_path / "env")
    constraints = ("-c", ROOT / "constraints.txt")
    subprocess.run([python, *quiet, "install", *constraints, wheel], **here, check=True)
    assert _bytes(tmp_path / "env") - before < LIMIT
    subprocess.run([python, *quiet, "install", *constraints, f"{wheel}[serve]"], **here, check=True)

    def longtail(*args: object) -> subprocess.CompletedProcess[str]:
        command = [python.with_name("longtail"), *map(str, args)]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    build = "from longtail.data.demo import demo_dataset as d; import pathlib; d(cache=pathlib.Path('c')).save('data')"
    subprocess.run([python, "-c", build], **here, check=True)
    done = longtail("train", "knn", "--data", "data", "--out", "run")
    assert done.returncode == 0, done.stderr
    (tmp_path / "texts.txt").write_text("mean of an array along an axis\n")
    answer = longtail("predict", "run", "texts.txt", "--k", 3)
    assert len(json.loads(answer.stdout)["labels"]) == 3, answer.stderr
    refused = longtail("train", "frugal", "--data", "data", "--out", "no")
    assert (refused.returncode, refused.stderr.count("\n")) == (5, 1) and "longtail[train]" in refused.stderr
    with subprocess.Popen(
        [python.with_name("longtail"), "serve", "run", "--port", "0"],
        env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    ) as service:  # fmt: skip
        try:
            url = next(found[0] for line in service.stderr if (found := re.search(r"http://\S+", line)))
            body = json.dumps({"texts": ["mean of an array"], "k": 2}).encode()
            request = urllib.request.Request(f"{url}/v1/predict", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as response:
                assert len(json.load(response)["predictions"][0]["labels"]) == 2
            with urllib.request.urlopen(url) as response:
                assert b"<html" in response.read()
        finally:
            service.send_signal(signal.SIGTERM)


def _bytes(folder: Path) -> int:
    """Add up the files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
