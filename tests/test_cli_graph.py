"""`longtail graph` and `longtail augment` as a user runs them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import shared_data
from typer.testing import CliRunner

from longtail.augment.gandalf import Gandalf
from longtail.cli import app
from longtail.cli.graph import Kinds, Methods
from longtail.data.check import check
from longtail.data.formats import FORMATS, load, write
from longtail.errors import DataError, LongtailError, RecipeError
from longtail.files import read_arrays, read_json
from longtail.labels.calibration import Reliability
from longtail.labels.graph import KINDS, conditionals
from longtail.labels.lookup import find_label
from longtail.labels.propensity import frequencies
from longtail.pipeline import fit
from longtail.recipe import augmentations
from longtail.report import draw_frequencies, draw_reliability, picture

ROWS = [("red cat", [0, 1]), ("cat", [1]), ("old cat", [0]), ("dog", [2, 1]), ("red dog", [2])]
LABELS = ["cat", "red", "dog", "lone fox"]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "animals"
    place.mkdir()
    rows = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS]
    (place / "trn.jsonl").write_text("\n".join(rows) + "\n")
    (place / "tst.jsonl").write_text('{"text": "blue cat", "labels": [0]}\n')
    (place / "lbl.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in LABELS))
    (place / "tst_filter.txt").write_text("0 3\n")
    return place


def run(*args):
    """Run a command; errors of the library are raised, as `main` would turn them into exit codes."""
    result = CliRunner().invoke(app, [*map(str, args)])
    if isinstance(result.exception, LongtailError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(folder):
    """Read the training points of an export."""
    return [json.loads(line) for line in gzip.decompress((folder / "trn.jsonl.gz").read_bytes()).splitlines()]


def test_build_writes_the_graph_whole_and_refuses_to_replace_it(folder, tmp_path):
    assert run("graph", "build", folder, "--out", tmp_path / "g") == ""
    arrays = read_arrays(tmp_path / "g" / "conditionals.safetensors")
    expected = conditionals(load(folder).train.targets)
    np.testing.assert_array_equal(arrays["indices"], expected.indices)
    np.testing.assert_array_equal(arrays["values"], expected.data)
    assert arrays["shape"].tolist() == [4, 4]
    with pytest.raises(DataError, match="--force"):
        run("graph", "build", folder, "--out", tmp_path / "g")
    run("graph", "build", folder, "--out", tmp_path / "g", "--force")


@pytest.mark.parametrize("kind", ["conditionals", "glas", "walk", "proximity"])
def test_every_kind_can_be_built_estimated_and_shown(kind, folder, tmp_path):
    file = tmp_path / f"{kind}.safetensors"
    estimated = json.loads(run("graph", "build", folder, "--kind", kind, "--dry-run", "--json"))
    assert set(estimated) == {"peak_bytes", "seconds", "entries"}
    assert run("graph", "build", folder, "--kind", kind, "--dry-run").startswith("about ")
    assert not file.exists()
    run("graph", "build", folder, "--kind", kind, "--out", file, "--top", 3)
    assert len(read_arrays(file)["indptr"]) == 5
    shown = json.loads(run("graph", "show", folder, "--label", "cat", "--kind", kind, "--json"))
    assert shown["neighbours"][0]["text"] == "red"


def test_the_kinds_are_those_of_the_library_and_methods_are_augmentations():
    assert [*Kinds] == [*KINDS]
    assert {*Methods} <= {*augmentations()}


USAGE = [
    ("graph", "build", "{d}", "--kind", "glass", "--out", "{x}"),
    ("graph", "build", "{d}", "--threshold", "2", "--out", "{x}"),
    ("graph", "build", "{d}", "--threshold", "nan", "--out", "{x}"),
    ("graph", "build", "{d}", "--from", "jsonx", "--out", "{x}"),
    ("graph", "build", "{d}"),
    ("graph", "show", "{d}", "--label", "cat", "--kind", "nosuch"),
    ("graph", "fit", "{d}", "--from", "jsonx"),
    ("augment", "{d}", "{x}", "--method", "gandolf"),
    ("augment", "{d}", "{x}", "--threshold", "1"),
    ("augment", "{d}", "{x}", "--threshold", "-0.1"),
    ("augment", "{d}", "{x}", "--threshold", "many"),
    ("augment", "{d}", "{x}", "--binarise", "nan"),
    ("augment", "{d}", "{x}", "--format", "jsonx"),
]


@pytest.mark.parametrize("args", USAGE, ids=" ".join)
def test_a_wrong_flag_is_a_usage_error(args, folder, tmp_path):
    result = CliRunner().invoke(app, [arg.format(d=folder, x=tmp_path / "x") for arg in args])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "x").exists()


def test_show_builds_one_row_only(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the whole graph was asked for")

    monkeypatch.setattr("longtail.labels.graph.built", refuse)
    monkeypatch.setattr("longtail.labels.walk.built", refuse)
    for kind in KINDS:
        shown = json.loads(run("graph", "show", folder, "--label", "red", "--kind", kind, "--json"))
        assert {row["text"] for row in shown["neighbours"]} == {"cat", "dog"}


def test_from_names_the_format(folder, tmp_path):
    file = tmp_path / "points"
    file.write_text("".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in ROWS))
    for args in (("graph", "show", file, "--label", "0", "--json"), ("graph", "fit", file, "--json")):
        assert json.loads(run(*args, "--from", "jsonl"))
    assert json.loads(run("graph", "build", folder, "--from", "jsonl", "--dry-run", "--json"))["entries"] > 0
    run("augment", folder, tmp_path / "more", "--from", "jsonl")
    with pytest.raises(DataError):
        run("augment", folder, tmp_path / "none", "--from", "parquet")


@pytest.mark.parametrize("format", ["jsonl", "arrow", "parquet", "pecos"])
def test_an_export_knows_its_original_points(format, folder, tmp_path):
    run("augment", folder, tmp_path / "more", "--format", format)
    before, after = load(folder), load(tmp_path / "more")
    assert read_json(tmp_path / "more" / "augmentation.json")["original_points"] == 5
    assert after.train.augmented.tolist() == [False] * 5 + [True] * 4
    assert after.train.original.texts.tolist() == before.train.texts.tolist()
    assert (after.train.original.targets != before.train.targets).nnz == 0
    (tmp_path / "more" / "augmentation.json").rename(tmp_path / "aside.json")
    plain = load(tmp_path / "more")
    assert plain.train.source is None
    assert plain.fingerprint == after.fingerprint
    (tmp_path / "aside.json").rename(tmp_path / "more" / "augmentation.json")
    model = fit("knn", after.train)
    np.testing.assert_array_equal(model.frequencies, frequencies(before.train.targets))
    assert model.points == 5
    rows = Gandalf().rows(after.train)
    np.testing.assert_array_equal(rows.toarray(), Gandalf().rows(before.train).toarray())
    shown = [
        json.loads(run("graph", "show", place, "--label", "cat", "--json")) for place in (folder, tmp_path / "more")
    ]
    assert shown[0] == shown[1]


def test_converting_an_export_keeps_what_is_original(folder, tmp_path):
    run("augment", folder, tmp_path / "more")
    run("data", "convert", tmp_path / "more", tmp_path / "converted", "--format", "parquet")
    assert len(load(tmp_path / "converted").train.original) == 5


CHANGES = [
    ("--set", "sample=4"),
    ("--set", "points=labels"),
    ("--method", "labelmix", "--set", "probability=1"),
]


@pytest.mark.parametrize("flags", CHANGES, ids=" ".join)
def test_where_the_originals_are_not_there_nothing_is_marked(flags, folder, tmp_path):
    run("augment", folder, tmp_path / "more", *flags)
    assert read_json(tmp_path / "more" / "augmentation.json")["original_points"] is None
    train = load(tmp_path / "more").train
    assert train.augmented is None
    assert train.source is None


def test_originals_whose_weak_targets_were_cut_are_not_untouched(folder, tmp_path):
    (folder / "trn.jsonl").write_text('{"text": "red cat", "labels": [0, 1], "weights": [1, 0.2]}\n')
    run("augment", folder, tmp_path / "soft")
    assert len(load(tmp_path / "soft").train.original) == 1
    run("augment", folder, tmp_path / "hard", "--binarise", 0.5)
    assert read_json(tmp_path / "hard" / "augmentation.json")["original_points"] is None


@pytest.mark.parametrize(
    "text", ["{", "[]", *(json.dumps({"original_points": bad}) for bad in (0, -1, 10, 2.5, "5", True, [5]))]
)
def test_a_damaged_augmentation_file_is_refused(text, folder, tmp_path):
    run("augment", folder, tmp_path / "more")
    (tmp_path / "more" / "augmentation.json").write_text(text)
    with pytest.raises(DataError, match=r"augmentation\.json"):
        load(tmp_path / "more")
    assert not check(tmp_path / "more").ok


def test_an_export_is_whole_or_not_there(folder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("longtail.data.formats.registry.write_json", full)
    result = CliRunner().invoke(app, ["augment", str(folder), str(tmp_path / "more")])
    assert isinstance(result.exception, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["animals"]


@pytest.mark.parametrize("method", ["gandalf", "labelmix"])
@pytest.mark.parametrize("format", ["jsonl", "xc"])
def test_features_without_texts_are_refused(method, format, tmp_path):
    place = tmp_path / "bags"
    place.mkdir()
    (place / "train.txt").write_text("2 3 2\n0 0:1 1:0.5\n1 2:1\n")
    (place / "Y.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="features but no texts") as refused:
        run("augment", place, tmp_path / "more", "--method", method, "--format", format)
    assert "raw texts" in str(refused.value)
    data = load(place)
    bare = data.with_splits(replace(data.train, features=None))
    with pytest.raises(DataError, match="neither texts nor features"):
        write(bare, tmp_path / "more", "xc")
    assert not (tmp_path / "more").exists()


def test_show_draws_bars_in_the_terminal_and_a_picture(folder, tmp_path):
    out = run("graph", "show", folder, "--label", "0", "--plot", tmp_path / "cat.svg")
    assert "█" in out
    assert "red" in out
    assert "0.500" in out
    assert (tmp_path / "cat.svg").read_text().startswith("<?xml")
    assert "no other label" in run("graph", "show", folder, "--label", "lone fox")


ODD = r"price $\frac$ x"


def test_dollars_in_texts_are_no_formulas(tmp_path):
    place = tmp_path / "costs $\\sqrt$"
    place.mkdir()
    (place / "trn.jsonl").write_text('{"text": "a", "labels": [0, 1]}\n')
    (place / "lbl.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (ODD, f"$ {ODD} $")))
    for label in ("0", "1"):
        for ending in ("svg", "png"):
            run("graph", "show", place, "--label", label, "--plot", tmp_path / f"{label}.{ending}")
    draw_reliability({ODD: (), "$": (Reliability(0, 1, 1, 0.5, 0.5),)}, tmp_path / "r.svg", ODD)
    draw_frequencies(np.array([3, 1]), tmp_path / "f.svg", ODD)
    with picture(tmp_path / "t.svg", ODD) as axes:
        assert axes.title.get_text() == ""
        shown = axes.get_title(loc="left")
    assert shown == r"price \$\frac\$ x"


def test_labels_are_found_by_number_or_text_and_else_the_closest_are_named(folder):
    labels = load(folder).labels
    assert find_label(labels, "2") == find_label(labels, "dog") == find_label(labels, " DOG ") == 2
    with pytest.raises(DataError, match="no label 'fox'; closest: 'lone fox'"):
        find_label(labels, "fox")
    with pytest.raises(DataError, match="number from 0 to 3"):
        find_label(labels, "999")


def test_fit_says_unknown_where_there_are_too_few_twins(folder, tmp_path):
    report = json.loads(run("graph", "fit", folder, "--json"))
    assert report["method"] == "shrunk"
    assert report["verdict"] == "unknown"
    assert "Unknown: only 2 of 4 label texts" in run("graph", "fit", folder, "--plot", tmp_path / "r.svg")


def test_fit_prints_tables_a_picture_and_advice_for_real_data(tmp_path):
    out = run("graph", "fit", shared_data("LF-MDNSeeAlsoTitles-6K"), "--plot", tmp_path / "r.svg")
    assert "Helps: 70%" in out
    assert "exactly 1" in out
    assert "chosen: isotonic" in out
    assert (tmp_path / "r.svg").stat().st_size > 5000


def test_augment_writes_a_folder_like_the_shared_data_sets(folder, tmp_path):
    out = tmp_path / "more"
    assert run("augment", folder, out, "--method", "gandalf", "--threshold", 0.1) == ""
    rows = rows_of(out)
    assert len(rows) == 9
    assert rows[5] == {"text": "cat", "labels": [0, 1], "weights": [1.0, 0.5]}
    assert rows[8] == {"text": "lone fox", "labels": [3], "weights": [1.0]}
    assert {path.name for path in out.iterdir()} >= {"tst.jsonl.gz", "lbl.jsonl.gz", "tst_filter.txt"}
    augmented = load(out)
    assert augmented.test.excluded.nnz == 1
    assert augmented.labels.texts.tolist() == LABELS
    assert json.loads((out / "augmentation.json").read_text())["part"] == "gandalf"
    with pytest.raises(DataError, match="force=True"):
        run("augment", folder, out)


def test_binarise_leaves_out_what_is_below_and_makes_the_rest_one(folder, tmp_path):
    run("augment", folder, tmp_path / "half", "--binarise", 0.5)
    rows = rows_of(tmp_path / "half")
    assert rows[5] == {"text": "cat", "labels": [0, 1]}
    run("augment", folder, tmp_path / "most", "--binarise", 0.6)
    rows = rows_of(tmp_path / "most")
    assert rows[5] == {"text": "cat", "labels": [0]}
    assert rows[0]["labels"] == [0, 1]


@pytest.mark.parametrize("format", ["jsonl", "parquet", "xmc", "pecos", "fasttext", "xc"])
def test_every_format_holds_it_or_names_binarise(format, folder, tmp_path):
    if not FORMATS[format].soft:
        with pytest.raises(DataError, match="--binarise"):
            run("augment", folder, tmp_path / "soft", "--format", format)
        assert not (tmp_path / "soft").exists()
    run("augment", folder, tmp_path / format, "--format", format, "--binarise", 0.4)
    loaded = load(tmp_path / format)
    assert len(loaded.train) == 9
    assert loaded.train.targets[[5]].indices.tolist() == [0, 1]


def test_labelmix_calibrate_and_settings(folder, tmp_path):
    run("augment", folder, tmp_path / "mix", "--method", "labelmix", "--set", "probability=1")
    texts = load(tmp_path / "mix").train.texts.tolist()
    assert len(texts) == 5
    assert texts[1] == "cat red"
    run("augment", folder, tmp_path / "cal", "--calibrate", "--set", "share=0.5")
    settings = json.loads((tmp_path / "cal" / "augmentation.json").read_text())
    assert settings["fitted"]["method"] == "shrunk"
    assert settings["share"] == 0.5
    with pytest.raises(RecipeError, match="labelmix has no setting 'calibrate'"):
        run("augment", folder, tmp_path / "no", "--method", "labelmix", "--calibrate")
    with pytest.raises(RecipeError, match="no '='"):
        run("augment", folder, tmp_path / "no", "--set", "share")
