"""A folder is found sound, mended, or told to be lost; nothing of the user's is touched."""

from __future__ import annotations

import shutil

import pytest
from small import board, short
from typer.testing import CliRunner

import longtail as lt
from longtail.artefact import build_artefact
from longtail.cli import app
from longtail.doctor import examine
from longtail.index import Index


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "run"
    lt.fit(short("frugal"), board(80)).save(path)
    build_artefact(path, search="exact")
    return path


@pytest.fixture
def run(good, tmp_path):
    return shutil.copytree(good, tmp_path / "run")


def test_a_sound_folder(run):
    assert examine(run) == []
    done = CliRunner().invoke(app, ["doctor", str(run)])
    assert done.exit_code == 0 and "is sound" in done.output


def test_leftovers_are_removed(run):
    names = [".config.json.0123456789ab.tmp.json", "index_00ff.safetensors", ".config.json.abcd_123.json"]
    left = [run / name for name in names] + [run.parent / ".run.0123456789ab.tmp"]
    for path in left:
        path.write_text("half")
    mine = run.parent / ".run.notes"
    mine.write_text("of the user")
    assert len(examine(run, repair=False)) == 4 and all(path.exists() for path in left)
    findings = examine(run)
    assert len(findings) == 4 and {finding.mended for finding in findings} == {"removed"}
    assert not any(path.exists() for path in left) and mine.exists() and examine(run) == []


def test_a_damaged_index_is_taken_out(run):
    (file,) = run.glob("index_*")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    done = CliRunner().invoke(app, ["doctor", str(run), "--dry-run"])
    assert done.exit_code == 3 and "changed since it was written" in done.output and file.exists()
    done = CliRunner().invoke(app, ["doctor", str(run)])
    assert done.exit_code == 0 and "took the index out" in done.output
    assert Index.load(run).served is None and not file.exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "labels.parquet"])
def test_what_cannot_be_repaired_is_told(run, name):
    (run / name).write_bytes(b"lost")
    done = CliRunner().invoke(app, ["doctor", str(run), "--json"])
    assert done.exit_code == 3 and name in done.output
    assert (run / name).read_bytes() == b"lost"


def test_a_folder_that_was_being_replaced_comes_back(run):
    run.rename(run.parent / ".run.0123456789ab.tmp.old")
    (finding,) = examine(run)
    assert finding.mended and examine(run) == []
    shutil.rmtree(run)
    (finding,) = examine(run)
    assert "not found" in finding.wrong and not finding.mended
