"""`longtail graph` and `longtail augment` as a user runs them."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from conftest import shared_data
from typer.testing import CliRunner

from longtail.cli import app
from longtail.data.formats import FORMATS, load
from longtail.errors import DataError, LongtailError, RecipeError
from longtail.files import read_arrays
from longtail.labels.graph import conditionals
from longtail.labels.lookup import find_label

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
def test_every_kind_can_be_built_foreseen_and_shown(kind, folder, tmp_path):
    file = tmp_path / f"{kind}.safetensors"
    foreseen = json.loads(run("graph", "build", folder, "--kind", kind, "--out", file, "--dry-run"))
    assert set(foreseen) == {"peak_bytes", "seconds", "entries"}
    assert not file.exists()
    run("graph", "build", folder, "--kind", kind, "--out", file, "--top", 3)
    assert len(read_arrays(file)["indptr"]) == 5
    shown = json.loads(run("graph", "show", folder, "--label", "cat", "--kind", kind, "--json"))
    assert shown["neighbours"][0]["text"] == "red"
    with pytest.raises(DataError, match="did you mean 'glas'"):
        run("graph", "build", folder, "--kind", "glass", "--out", file)


def test_show_draws_bars_in_the_terminal_and_a_picture(folder, tmp_path):
    out = run("graph", "show", folder, "--label", "0", "--plot", tmp_path / "cat.svg")
    assert "█" in out
    assert "red" in out
    assert "0.500" in out
    assert (tmp_path / "cat.svg").read_text().startswith("<?xml")
    assert "no other label" in run("graph", "show", folder, "--label", "lone fox")


def test_labels_are_found_by_number_or_text_and_else_the_closest_are_named(folder):
    labels = load(folder).labels
    assert find_label(labels, "2") == find_label(labels, "dog") == find_label(labels, " DOG ") == 2
    with pytest.raises(DataError, match="no label 'fox'; closest: 'lone fox'"):
        find_label(labels, "fox")
    with pytest.raises(DataError, match="number from 0 to 3"):
        find_label(labels, "999")


def test_fit_says_unknown_where_there_are_too_few_twins(folder, tmp_path):
    told = json.loads(run("graph", "fit", folder, "--json"))
    assert told["method"] == "shrunk"
    assert told["verdict"] == "unknown"
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
    again = load(out)
    assert again.test.excluded.nnz == 1
    assert again.labels.texts.tolist() == LABELS
    assert json.loads((out / "augmentation.json").read_text())["part"] == "gandalf"
    with pytest.raises(DataError, match="--force"):
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
    again = load(tmp_path / format)
    assert len(again.train) == 9
    assert again.train.targets[[5]].indices.tolist() == [0, 1]


def test_labelmix_calibrate_and_settings(folder, tmp_path):
    run("augment", folder, tmp_path / "mix", "--method", "labelmix", "--set", "probability=1")
    texts = load(tmp_path / "mix").train.texts.tolist()
    assert len(texts) == 5
    assert texts[1] == "cat red"
    run("augment", folder, tmp_path / "cal", "--calibrate", "--set", "share=0.5")
    told = json.loads((tmp_path / "cal" / "augmentation.json").read_text())
    assert told["fitted"]["method"] == "shrunk"
    assert told["share"] == 0.5
    with pytest.raises(RecipeError, match="labelmix has no setting 'calibrate'"):
        run("augment", folder, tmp_path / "no", "--method", "labelmix", "--calibrate")
    with pytest.raises(RecipeError, match="did you mean 'gandalf'"):
        run("augment", folder, tmp_path / "no", "--method", "gandolf")
    with pytest.raises(RecipeError, match="no '='"):
        run("augment", folder, tmp_path / "no", "--set", "share")
    with pytest.raises(DataError, match="unknown format"):
        run("augment", folder, tmp_path / "no", "--format", "jsonx")
