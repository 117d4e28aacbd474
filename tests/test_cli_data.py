"""The commands that read, check and convert data."""

from __future__ import annotations

import json

import pytest
from conftest import shared_data
from test_cli import a_folder, apart, run  # noqa: F401


def test_data_commands(folder):
    facts = json.loads(run("data", "info", folder / "d", "--json").stdout)
    assert (facts["N_train"], facts["N_test"], facts["L"]) == (12, 1, 3)
    for name in ("parquet", "csv", "arrow"):
        done = run("data", "convert", folder / "d", folder / name, "--format", name)
        assert done.returncode == 0, done.stderr
        assert json.loads(run("data", "info", folder / name, "--json").stdout)["fingerprint"] == facts["fingerprint"]
    assert run("data", "convert", folder / "d", folder / "csv", "--format", "csv").returncode == 3
    assert run("data", "split", folder / "d", folder / "split", "--share", "0.25").returncode == 0
    split = json.loads(run("data", "info", folder / "split", "--json").stdout)
    assert (split["N_train"], split["N_validation"]) == (9, 3)
    picture = folder / "tail.svg"
    assert run("data", "info", folder / "d", "--plot", picture).returncode == 0
    assert picture.read_text().startswith("<?xml")


def test_data_check(folder):
    assert run("data", "check", folder / "d").returncode == 0
    bad = folder / "bad"
    bad.mkdir()
    (bad / "trn.jsonl").write_text('{"text": "a", "labels": [0]}\n{"text": "", "labels": [7]}\nnot json\n')
    (bad / "lbl.jsonl").write_text('{"text": "cat"}\n')
    done = run("data", "check", bad)
    assert done.returncode == 3
    assert "trn.jsonl:2" in done.stdout
    assert "trn.jsonl:3" in done.stdout
    (bad / "trn.jsonl").write_text('{"text": "", "labels": [0]}\n')
    assert run("data", "check", bad).returncode == 0
    assert run("data", "check", bad, "--strict").returncode == 3
    assert "0 errors, 1 warning\n" in run("data", "check", bad).stderr
    (bad / "trn.jsonl").write_text(
        '{"text": "", "labels": [0]}\n{"text": "", "labels": [0]}\n{"text": "a", "labels": [1]}\n'
    )
    assert "1 error, 2 warnings\n" in run("data", "check", bad).stderr


def test_the_input_format_can_be_named(folder):
    path = folder / "mine.txt"
    path.write_text("hello\n")
    done = run("data", "info", path)
    assert done.returncode == 3
    assert "--from" in done.stderr
    path.write_text("Text;Labels\nred cat;0\nold dog;1\n")
    for command in (
        ("info",),
        ("check",),
        ("convert", folder / "named"),
        ("split", folder / "divided", "--share", 0.5),
    ):
        name, *rest = command
        done = run("data", name, path, *rest, "--from", "csv")
        assert done.returncode == 0, done.stderr
        assert run("data", name, path, *rest, "--from", "jsonl").returncode == 3
    facts = json.loads(run("data", "info", folder / "divided", "--json").stdout)
    assert (facts["N_train"], facts["N_validation"]) == (1, 1)


def test_info_is_written_for_people(folder):
    (folder / "f").mkdir()
    for name in ("trn", "tst"):
        (folder / "f" / f"{name}.jsonl").write_text('{"text": "a", "labels": [0, 1]}\n' * 2000)
    (folder / "f" / "trn_filter.txt").write_text("".join(f"{row} 0\n" for row in range(1500)))
    shown = run("data", "info", folder / "f").stdout
    assert "train 1,500 · test 0" in shown
    assert next(line for line in shown.splitlines() if "soft targets" in line).split()[-2] == "no"


README_FIGURES = {
    "N_train": 128438, "N_test": 29760, "L": 87028, "points_per_label": 3.74, "labels_per_point": 2.54,
    "labels_per_point_test": 2.45, "words_per_point": 5.93, "words_per_label": 5.43, "share_labels_le_5": 0.856,
    "share_labels_0": 0.0, "share_labels_1": 0.415, "max_points_of_a_label": 437,
    "share_train_texts_in_labels": 0.448, "distinct_label_texts": 86995, "labels_in_test": 33730,
}  # fmt: skip


def test_info_prints_the_figures_of_the_readme():
    facts = json.loads(run("data", "info", shared_data("LF-MSDocsSeeAlsoTitles-87K"), "--json").stdout)
    for name, value in README_FIGURES.items():
        places = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
        assert facts[name] == pytest.approx(value, abs=0.51 * 10**-places), name


@pytest.mark.parametrize(
    "name",
    [
        "CVELibraries-4K",
        "LF-MDNSeeAlso-6K",
        "LF-MDNSeeAlsoTitles-6K",
        "LF-MSDocsSeeAlsoTitles-87K",
        "YSOFinnaTitles-24K",
    ],
)
def test_every_shared_data_set_passes_the_check(name):
    done = run("data", "check", shared_data(name), "--most", 1)
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stderr
