from __future__ import annotations

import json

import pytest
from test_cli import run

import longtail as lt
from longtail.folder import SCHEMA, write_config
from longtail.upgrade import STEPS, upgrade

TEXTS = ["red cat", "old dog", "wild fox"] * 10


@pytest.fixture
def old(tmp_path):
    """A folder as schema 3 was: scores by words were one field of the recipe."""
    lt.fit("knn", TEXTS, [[text.split()[1]] for text in TEXTS]).save(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (lexical,) = config["recipe"].pop("voices")
    config["recipe"]["lexical"] = lexical
    kept = ("recipe", "labels", "points", "dataset", "files")
    write_config(tmp_path / "run", {"schema": 3} | {name: config[name] for name in kept})
    return tmp_path / "run"


def test_an_old_folder_answers_again(old):
    with pytest.raises(lt.ModelError, match="longtail upgrade"):
        lt.Model.load(old)
    assert upgrade(old) == 3
    assert lt.Index.load(old).predict(["my fox"], k=1)[0][0][1] == "fox"
    done = run("upgrade", old)
    assert done.returncode == 0 and "is up to date" in done.stderr


def test_every_schema_from_the_first_known_one_has_a_step():
    assert sorted(STEPS) == list(range(min(STEPS), SCHEMA))


def test_what_cannot_be_upgraded_is_said_in_one_line_and_stays(old):
    config = json.loads((old / "config.json").read_text())
    write_config(old, config | {"schema": 1})
    refused = run("upgrade", old)
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1) and "train again" in refused.stderr
    config["recipe"]["lexical"]["colour"] = "red"
    write_config(old, config)
    before = (old / "config.json").read_bytes()
    with pytest.raises(lt.ModelError, match=r"stays as it is .*colour"):
        upgrade(old)
    assert (old / "config.json").read_bytes() == before


def test_a_changed_folder_is_refused(old):
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps(config | {"points": 31}))
    with pytest.raises(lt.ModelError, match="changed since it was written"):
        upgrade(old)


def test_a_model_without_its_texts(tmp_path):
    model = lt.fit("knn", TEXTS, [[text.split()[1]] for text in TEXTS])
    model.save(tmp_path / "run", texts=False)
    assert not any(b"red cat" in file.read_bytes() for file in (tmp_path / "run").iterdir())
    index = lt.Index.load(tmp_path / "run")
    assert index.predict(["a fox"], k=1)[0][0][1] == "fox"
    assert index.label(0)["examples"] == []
    assert "holds no training text" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(lt.DataError, match="keeps no training points"):
        lt.fit("knn", ["brown owl"], [["owl"]], continue_from=index.model)
