from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp

from longtail import folder as folder_module
from longtail.data.dataset import from_rows
from longtail.errors import DataError, LongtailError, ModelError
from longtail.folder import SCHEMA, changing, keep_evaluation, read_config, replace_files, write_config
from longtail.index import Index
from longtail.model import Model
from longtail.pipeline import evaluate, fit


@pytest.fixture
def data():
    texts = ["red cat", "old dog", "red fox", "grey cat"] * 5
    return from_rows({"train": (texts, [[0], [1], [2], [0, 2]] * 5)}, label_texts=["cat", "dog", "fox"])


@pytest.fixture
def model(data):
    return fit("knn", data.train)


def test_a_model_comes_back_from_its_folder(model, tmp_path):
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert loaded.recipe == model.recipe
    assert loaded.frequencies.tolist() == model.frequencies.tolist() == [10, 5, 10]
    texts = ["cat", "", "a red dog", "nothing known"]
    np.testing.assert_array_equal(loaded.predict(texts, 2).labels, model.predict(texts, 2).labels)
    np.testing.assert_array_equal(loaded.predict(texts, 2).scores, model.predict(texts, 2).scores)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "config.json",
        "labels.parquet",
        "README.md",
        "metrics.json",
    }


def test_excluded_pairs_are_never_predicted(model):
    pairs = sp.csr_array(np.array([[1, 0, 0]], np.float32))
    assert model.predict(["cat"], 1).labels[0, 0] == 0
    assert 0 not in model.predict(["cat"], 3, exclude=pairs).labels
    with pytest.raises(DataError, match="exclude is"):
        model.predict(["a", "b"], 1, exclude=pairs)


def test_wrong_calls_say_what_to_do(model, data):
    with pytest.raises(DataError, match="list of texts"):
        model.predict("cat")
    with pytest.raises(DataError, match="at least one"):
        model.predict(["cat"], 0)
    assert model.predict(["cat"], 50).labels.shape == (1, 3)
    assert model.predict([], 2).labels.shape == (0, 2)
    other = from_rows({"train": (["a"], [[0]])}, label_texts=["a"])
    with pytest.raises(DataError, match="1 labels, the model 3"):
        model.predict_split(other.train)
    renamed = from_rows({"train": (["a"], [[0]])}, label_texts=["cat", "bee", "fox"])
    with pytest.raises(DataError, match="their texts differ"):
        model.predict_split(renamed.train)


def test_a_changed_byte_anywhere_is_refused(model, tmp_path):
    model.save(tmp_path / "run")
    for path in sorted((tmp_path / "run").iterdir()):
        raw = path.read_bytes()
        for place in {0, len(raw) // 2, len(raw) - 1}:
            path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
            try:
                loaded = Model.load(tmp_path / "run")
            except LongtailError as error:
                assert str(tmp_path) in str(error)
            else:
                raise AssertionError(f"{path.name} was changed at {place} and {loaded} came of it")
        path.write_bytes(raw)
    assert Model.load(tmp_path / "run").points == 20


@pytest.mark.parametrize("name", ["labels.parquet", "lexical.safetensors", "words.arrow", "config.json"])
def test_a_missing_or_cut_file_is_refused(model, tmp_path, name):
    model.save(tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError):
        Model.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(ModelError):
        Model.load(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [{"schema": 99}, {"files": {"../../etc/passwd": "0"}}, {"labels": 10**9}, {"recipe": {"part": "os.system"}}],
)
def test_a_hostile_config_is_refused(model, tmp_path, change):
    model.save(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LongtailError):
        Model.load(tmp_path / "run")


def test_a_folder_of_another_version_is_refused_in_one_line(model, tmp_path):
    run = tmp_path / "run"
    model.save(run)
    config = read_config(run)
    assert config["schema"] == SCHEMA == 5
    earlier = {"part": "recipe", "name": "knn", "shortlist": None, "classifier": None, "surrogate": None}
    write_config(run, config | {"schema": 1, "recipe": earlier})  # whole, as version 1 wrote it
    for load in (Model.load, Index.load, read_config):
        with pytest.raises(ModelError) as error:
            load(run)
        assert str(error.value) == (
            f"{run}: written by another version of longtail (schema 1, this one reads 5); "
            f"try `longtail upgrade {run}`, or train again"
        )


def test_an_evaluation_is_kept_with_the_folder(model, data, tmp_path):
    run = tmp_path / "run"
    model.save(run)
    assert model.metrics == {} == Model.load(run).metrics
    assert "Not evaluated yet" in (run / "README.md").read_text()
    assert {example["held_out"] for example in Index.load(run).describe()["examples"]} == {False}
    result = evaluate(model, data.train)
    keep_evaluation(run, model.facts(), result.to_dict())
    loaded = Model.load(run)  # every checksum is right
    assert loaded.metrics["P@1"] == pytest.approx(result.values["P@1"], abs=1e-4)
    assert (loaded.metrics["split"], loaded.metrics["fingerprint"]) == ("train", data.train.fingerprint)
    keep_evaluation(run, model.facts(), result.to_dict())  # the same points again
    keep_evaluation(run, model.facts(), evaluate(model, data.train.named("test")).to_dict())
    assert [one["split"] for one in Model.load(run).evaluations] == ["train", "test"]
    about = Index.load(run).describe()
    for example in about["examples"]:  # a few points to try it with
        row = data.train.texts.tolist().index(example["text"])
        assert [label["id"] for label in example["labels"]] == data.train.targets[[row]].indices.tolist()
        assert example["labels"][0]["text"] == data.labels.texts[example["labels"][0]["id"]]
        assert example["held_out"]
    assert 0 < len(about["examples"]) <= 8
    assert about["metrics"]["P@1"] == loaded.metrics["P@1"]
    assert about["evaluated"]["split"] == "test"
    assert "| P | " in (run / "README.md").read_text()


def test_figures_are_kept_whole_or_not_at_all(model, data, tmp_path, monkeypatch):
    run = tmp_path / "run"
    model.save(run)
    figures = evaluate(model, data.train).to_dict()
    for place in range(4):  # config, metrics, card, config: stopped before each of them
        calls = iter(range(10))
        real = folder_module.whole_file

        def stop(path, *, place=place, calls=calls, real=real):
            if next(calls) == place:
                raise KeyboardInterrupt
            return real(path)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("longtail.folder.whole_file", stop)
            patch.setattr("longtail.files.whole_file", stop)
            keep_evaluation(run, model.facts(), figures)
        Model.load(run)
        Index.load(run)
    keep_evaluation(run, model.facts(), figures)
    (run / "metrics.json").write_text("{}")
    with pytest.raises(ModelError, match=r"metrics\.json: changed"):
        Model.load(run)


def test_figures_of_a_model_that_was_replaced_meanwhile_are_not_kept(model, data, tmp_path):
    fit("knn", data.train.take(np.arange(10))).save(tmp_path / "run")
    with pytest.raises(ModelError, match="replaced while it was evaluated"):
        keep_evaluation(tmp_path / "run", model.facts(), evaluate(model, data.train).to_dict())


@pytest.mark.parametrize("kept", [{"P@1": 5.0}, {"points": "many", "bins": []}, {"points": 1, "bins": [{}]}])
def test_figures_of_a_stranger_are_refused_in_one_line(model, data, tmp_path, kept):
    run = tmp_path / "run"
    model.save(run)
    with changing(run) as config:
        replace_files(run, config, {"metrics.json": json.dumps({"evaluations": [kept]})})
    with pytest.raises(ModelError, match="figures that longtail does not write") as refused:
        keep_evaluation(run, model.facts(), evaluate(model, data.train).to_dict())
    assert "\n" not in str(refused.value)
    assert Model.load(run).evaluations == (kept,)


def test_figures_of_an_earlier_version_are_read(model, tmp_path):
    run = tmp_path / "run"
    model.save(run)
    with changing(run) as config:
        odd = [7, {"text": "x", "labels": [-1, 10**9, "a", True]}, {"text": 1}]  # of a stranger
        figures = {"P@1": 50.0, "points": 3, "bins": [], "examples": odd}
        replace_files(run, config, {"metrics.json": json.dumps(figures)})
    loaded = Model.load(run)
    assert (loaded.metrics["P@1"], loaded.metrics["split"]) == (50.0, "validation")
    about = Index.load(run).describe()
    assert about["metrics"] == {"P@1": 50.0}
    assert about["examples"] == [{"text": "x", "labels": [], "held_out": True}]


def test_a_folder_is_changed_by_one_at_a_time(model, data, tmp_path):
    run, turns = tmp_path / "run", []
    model.save(run)
    other = fit("knn", data.train.take(np.arange(10)))

    def replace_model():
        other.save(run, force=True)
        turns.append("replaced")

    with changing(run) as config:
        thread = threading.Thread(target=replace_model)
        thread.start()
        time.sleep(0.2)
        assert turns == []  # it waits
        replace_files(run, config, {"metrics.json": json.dumps({"evaluations": []})})
    thread.join()
    assert turns == ["replaced"] and Model.load(run).points == 10
