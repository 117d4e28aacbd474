from __future__ import annotations

import json

import numpy as np
import pytest
from test_cli import run

import longtail as lt
from longtail.files import read_arrays, write_arrays
from longtail.folder import SCHEMA, checksum, read_config, write_config
from longtail.scorers import linear
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


def test_trees_by_node_become_trees_by_word(tmp_path):
    """Schema 4 listed the words of each node of `linear`; the answers stay the same."""
    run_folder = tmp_path / "run"
    lt.fit("linear", TEXTS, [[text.split()[1]] for text in TEXTS]).save(run_folder)
    before = lt.Model.load(run_folder).predict(TEXTS[:3], k=3)
    new = {name: np.array(values) for name, values in read_arrays(run_folder / linear.FILE).items()}
    term = np.repeat(np.arange(len(new["owners"])), np.diff(np.append(0, new["ends"])))
    word = np.repeat(np.arange(len(new["starts"]) - 1), np.diff(new["starts"]))[term]
    node, nodes = new["owners"][term], len(new["firsts"]) - 1
    order = np.lexsort((new["children"], word, node))
    word, node = word[order], node[order]
    last = np.append((word[1:] != word[:-1]) | (node[1:] != node[:-1]), True)
    kept = ("roots", "firsts", "below", "biases", "labels")
    old = {name: new[name] for name in kept} | {
        "node_ends": np.cumsum(np.bincount(node[last], minlength=nodes)),
        "words": word[last].astype(np.int32),
        "word_ends": np.flatnonzero(last) + 1,
        "children": new["children"][order],
        "weights": new["weights"][order],
    }
    write_arrays(run_folder / linear.FILE, old)
    config = read_config(run_folder)
    files = config["files"] | {linear.FILE: checksum(run_folder / linear.FILE)}
    write_config(run_folder, config | {"schema": 4, "files": files})
    assert upgrade(run_folder) == 4
    after = lt.Model.load(run_folder).predict(TEXTS[:3], k=3)
    assert (after.labels == before.labels).all() and (after.scores == before.scores).all()
    del old["words"]
    write_arrays(run_folder / linear.FILE, old)
    files = config["files"] | {linear.FILE: checksum(run_folder / linear.FILE)}
    write_config(run_folder, config | {"schema": 4, "files": files})
    with pytest.raises(lt.ModelError, match="stays as it is"):
        upgrade(run_folder)


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
    model = model.kept({"split": "test", "points": 1, "bins": [], "examples": [{"text": "red cat"}]})
    model.save(tmp_path / "run", texts=False)
    assert not any(b"red cat" in file.read_bytes() for file in (tmp_path / "run").iterdir())
    index = lt.Index.load(tmp_path / "run")
    assert index.predict(["a fox"], k=1)[0][0][1] == "fox"
    assert index.label(0)["examples"] == []
    assert "holds no training text" in (tmp_path / "run" / "README.md").read_text()
    with pytest.raises(lt.DataError, match="keeps no training points"):
        lt.fit("knn", ["brown owl"], [["owl"]], continue_from=index.model)
