"""The pictures of the papers: what is computed, what is chosen, and that pages say what the numbers say."""

from __future__ import annotations

import json
import runpy
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench" / "paper_figures"))  # as `python bench/paper_figures` does

import figure_cosines
import figure_curves
import figure_examples
import figure_positives
import figure_propensities
from figure_cosines import Summary
from figure_curves import Curve
from paper_figures.__main__ import main

from longtail.data.dataset import from_rows
from longtail.data.tokens import Words
from longtail.errors import DataError
from longtail.pipeline import fit
from longtail.types import TopK

ANIMALS = ("cat", "dog", "fox", "owl")


def pets():
    """Points of a colour and an animal, whose labels are the animal and, for one point each, the two together."""
    colours = ("red", "old", "wild", "small", "big", "mad")
    texts = [f"{colour} {animal}" for colour in colours for animal in ANIMALS]
    rows = [[place % 4, 4 + place] for place in range(len(texts))]
    names = [*ANIMALS, *(f"{text} story" for text in texts)]
    return from_rows({"train": (texts, rows), "test": (texts[:8], rows[:8])}, label_texts=names, name="pets")


def svg(path):
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return root


def test_the_folder_is_a_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench/paper_figures", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / "bench" / "paper_figures"), run_name="__main__")
    page = capsys.readouterr().out
    assert all(
        f"python bench/paper_figures {name}" in page
        for name in ("cosines", "curves", "side-by-side", "positives", "propensities")
    )


@pytest.mark.parametrize("kind", [sp.csr_array, np.asarray])
def test_cosines_of_known_texts(kind):
    words = Words.fit(["red cat", "old dog"])
    first, second = (
        kind(words.bag(texts).toarray())
        for texts in (["red cat", "red cat", "?", "old"], ["cat red", "dog", "dog", "old dog"])
    )
    assert figure_cosines.cosines(first, second) == pytest.approx([1, 0, np.sqrt(0.5)], abs=1e-6)  # "?" has none
    assert figure_cosines.nearest(first, second) == pytest.approx([1, 1, np.sqrt(0.5)], abs=1e-6)
    assert len(figure_cosines.cosines(first[:0], second[:0])) == 0


def test_a_summary_counts_equal_cosines_half():
    found = figure_cosines.summary(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.0, 0.6, 0.6]))
    assert found == Summary(3, 0.5, 0.25, 0.5, 0.75, pytest.approx((0.25 + 0.5 + 1) / 3))
    assert np.isnan(figure_cosines.summary(np.zeros(0), np.zeros(3)).median)


def test_pairs_are_what_their_names_say():
    train = pets().train
    texts, names = train.texts.tolist(), train.labels.texts.tolist()
    own = {text: {names[label] for label in (place % 4, 4 + place)} for place, text in enumerate(texts)}
    pairs = figure_cosines.draw_pairs(train, seed=1)
    assert list(pairs) == list(figure_cosines.KINDS)
    assert all(one != other for one, other in zip(*pairs["random"], strict=True))
    assert sorted(pairs["codocument"][0]) == sorted(texts)
    for one, other in zip(*pairs["codocument"], strict=True):
        assert one != other and one.split()[1] == other.split()[1]
    assert set(pairs["head"][1]) <= set(ANIMALS)
    assert all(name in own[text] and name.endswith("story") for text, name in zip(*pairs["tail"], strict=True))
    for kind in ("labelmix", "other"):
        assert len(pairs[kind][0]) > 10
        for text, longer in zip(*pairs[kind], strict=True):
            assert longer.startswith(text + " ")
            assert (longer.removeprefix(text + " ") in own[text]) == (kind == "labelmix")
    assert pairs == figure_cosines.draw_pairs(train, seed=1)
    assert len(figure_cosines.draw_pairs(train, points=5)["random"][0]) == 5


def test_a_point_that_shares_no_label_has_no_codocument():
    data = from_rows({"train": (["a", "b", "c"], [[0], [0], [1]])}, label_texts=["x", "y"])
    found = figure_cosines.codocuments(data.train.targets, np.arange(3), np.random.default_rng(0))
    assert found.tolist() == [1, 0, -1]


def test_the_numbers_decide_what_is_confirmed():
    def verdicts(**medians):
        kinds = dict.fromkeys(figure_cosines.KINDS, 0.1) | medians
        claims = figure_cosines.claims({kind: Summary(9, 0, 0, value, 0, 0.9) for kind, value in kinds.items()})
        return ["not confirmed" not in claim for claim in claims]

    assert verdicts(labelmix=0.9) == [True, True, True, True, True]
    assert verdicts(labelmix=0.5) == [False, True, True, True, False]
    assert verdicts(labelmix=0.9, head=0.8, nearest=1.0, other=0.8) == [True, False, True, False, False]
    assert figure_cosines.trained_claim({"a": 0.8}, ["a"]) == []
    assert "not confirmed" in figure_cosines.trained_claim({"a": 0.8, "b": 0.9}, ["a"])[0]
    assert "not confirmed" not in figure_cosines.trained_claim({"a": 0.8, "b": 0.9}, ["b"])[0]


def test_the_page_of_cosines_and_its_picture(tmp_path, capsys):
    pets().save(tmp_path / "pets")
    main(["cosines", str(tmp_path / "pets"), "--out", str(tmp_path / "cosines")])
    page = (tmp_path / "cosines.md").read_text()
    assert "python bench/paper_figures cosines" in page and "confirmed here" in page
    assert "| TF-IDF | another point, at random | 24 |" in page
    svg(tmp_path / "cosines-pets.svg")
    fit("knn", pets().train).save(tmp_path / "knn")
    with pytest.raises(SystemExit):
        main(["cosines", str(tmp_path / "pets"), "--model", str(tmp_path / "knn")])
    assert "no encoder" in capsys.readouterr().err


def test_a_smaller_data_set_keeps_the_labels_of_its_points():
    some = figure_curves.smaller(pets(), 6)
    assert len(some.train) == 6 and some.train.targets.nnz == 12
    assert (np.bincount(some.train.targets.indices, minlength=len(some.labels)) > 0).all()
    assert some.train.labels is some.test.labels and (np.diff(some.test.targets.indptr) > 0).all()


def curve(name, steps, trained, tested):
    return Curve(name, steps, {"train P@1": trained, "P@1": tested, "PSP@5": tested})


def test_curves_are_compared_at_equal_steps():
    plain = curve("plain", (10, 20, 40), (50, 70, 90), (30, 40, 40))
    better = curve("better", (15, 30, 60), (50, 70, 90), (40, 50, 60))
    assert figure_curves.equal_steps(plain, better) == [15, 20, 30, 40]
    claims = figure_curves.claims(plain, better)
    assert len(claims) == 8 and not any("not confirmed" in claim for claim in claims)
    assert "50.0 points without and 30.0 with it" in claims[0]
    assert all("not confirmed" in claim for claim in figure_curves.claims(better, plain)[1:])
    assert "none in common" in figure_curves.claims(plain, curve("late", (50, 60), (1, 2), (3, 4)))[-1]
    assert "| 15 | 35.00 | 40.00 |" in figure_curves.equal_table([plain, better], ["P@1"])


def test_what_has_a_line_is_not_fitted_again(tmp_path, monkeypatch, capsys):
    fitted = []

    def measure(recipe, data, scratch):
        epochs = recipe.stages[-1].epochs
        if len(fitted) == 3:
            raise KeyboardInterrupt
        fitted.append((recipe.name, epochs))
        better = 5.0 * ("gandalf" in recipe.name)
        values = dict.fromkeys(figure_curves.METRICS, better + epochs) | {"train P@1": 50.0 + epochs}
        return values | dict.fromkeys(("steps", "all_steps", "train_points", "test_points", "seconds"), 3 * epochs)

    pets().save(tmp_path / "pets")
    command = ["curves", "--data", str(tmp_path / "pets"), "--epochs", "1", "2", "--out", str(tmp_path / "curves")]
    monkeypatch.setattr(figure_curves, "fitted", measure)
    with pytest.raises(KeyboardInterrupt):
        main([*command, "--fit"])
    main(command)
    assert "Not fitted yet: 1 of 4" in (tmp_path / "curves.md").read_text()
    fitted.pop()
    main([*command, "--fit"])
    assert fitted == [("astec", 1), ("astec", 2), ("astec+gandalf", 2)]
    lines = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [(line["recipe"], line["epochs"]) for line in lines] == [
        ("astec", 1), ("astec", 2), ("astec+gandalf", 1), ("astec+gandalf", 2),
    ]  # fmt: skip
    page = (tmp_path / "curves.md").read_text()
    assert "Not fitted" not in page and "| astec+gandalf | 2 | 0 | 6 |" in page
    assert len(list(tmp_path.glob("curves-*-pets.svg"))) == 2
    svg(tmp_path / "curves-gap-pets.svg")
    main([*command, "--set", "training.learning_rate=0.5"])
    assert "Not fitted yet: 4 of 4" in (tmp_path / "curves.md").read_text()


def test_logs_are_read_by_stage(tmp_path):
    for name, value in (("plain", 30), ("gandalf", 40)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.csv").write_text(
            "stage,epoch,step,loss,learning_rate,time,P@1\nsurrogate,1,9,2,0.1,0,\n"
            f"training,1,5,1.5,0.1,0,{value}\ntraining,2,10,1.0,0.1,0,{value + 5}\n"
        )
    found = figure_curves.logged(tmp_path / "plain")
    assert found == Curve("plain", (5, 10), {"loss": (1.5, 1.0), "P@1": (30, 35)})
    page = figure_curves.logged_section([found, figure_curves.logged(tmp_path / "gandalf")], tmp_path / "curves")
    assert "| 5 | 1.50 | 1.50 | 30.00 | 40.00 |" in page
    svg(tmp_path / "curves-log.svg")
    (tmp_path / "plain" / "log.csv").write_text("stage,epoch,step,loss,learning_rate,time\ntraining,1,5,1,0.1,0\n")
    with pytest.raises(DataError, match=r"training\.curves=true"):
        figure_curves.logged(tmp_path / "plain")
    with pytest.raises(DataError, match=r"no log\.csv"):
        figure_curves.read_log(tmp_path)


def test_points_are_chosen_by_the_rule_and_not_by_hand():
    first, second = np.array([1, 0, 2, 1, 0, 3, 1]), np.array([0, 1, 2, 2, 1, 1, 0])
    assert figure_examples.chosen(first, second, 4) == ([1, 3], [0, 5])
    assert figure_examples.chosen(first, first, 8) == ([], [])


def test_predictions_side_by_side():
    names = ["cat", "a|b", "<tr>", "owl", "fox"]
    test = from_rows({"test": (["one", "two", "three"], [[0, 1], [2], [3]])}, label_texts=names, name="pets").test
    tops = [
        TopK(np.array(rows, np.int32), np.zeros((3, 5), np.float32))
        for rows in (
            [[0, 2, 3, 4, -1], [0, 1, 3, 4, -1], [3, 0, 1, 2, 4]],
            [[1, 0, 2, 3, -1], [2, 0, 1, 3, 4], [0, 1, 2, 4, -1]],
        )
    ]
    page = figure_examples.side_by_side(test, tops, ("plain", "better"), np.array([7, 1, 2, 0, 5]), [], most=2)
    assert "| 1 | **cat** (7) | **a\\|b** (1) |" in page and "| 5 | – | – |" in page
    assert "| | plain: 1 of 2 | better: 2 of 2 |" in page
    assert [line for line in page if line.startswith("#")][1:] == [
        "## better has more", "### one", "## better has fewer", "### three",
    ]  # fmt: skip
    assert "more right labels for 2 points, fewer for 1, as many for 0." in " ".join(page)
    assert any("**not confirmed here**, 1 with better instead of plain, 1 the other way round" in line for line in page)


def test_the_command_side_by_side(tmp_path):
    pets().save(tmp_path / "pets")
    for name in ("knn", "knn+gandalf"):
        fit(name, pets().train).save(tmp_path / name)
    folders = [str(tmp_path / name) for name in ("knn", "knn+gandalf")]
    main(["side-by-side", *folders, "--data", str(tmp_path / "pets"), "--out", str(tmp_path / "side")])
    page = (tmp_path / "side.md").read_text()
    assert page.startswith("# Predictions of knn and knn+gandalf side by side\n\n    python bench/paper_figures side-")
    assert "- P@1: " in page


@pytest.mark.slow
def test_curves_of_real_trainings(tmp_path):
    pets().save(tmp_path / "pets")
    small = {
        "encoder.dim": 16, "encoder.init": "random", "surrogate.num_clusters": 4, "surrogate.training.epochs": 1,
        "surrogate.training.min_steps": 1, "training.batch_size": 8,
    }  # fmt: skip
    changes = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    command = ["curves", "--fit", "--data", str(tmp_path / "pets"), "--epochs", "1", "3", *changes]
    main([*command, "--out", str(tmp_path / "curves")])
    lines = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert [line["steps"] // line["epochs"] for line in lines] == [3, 3, 7, 7]  # 23 points, or 51, in batches of 8
    assert all(line["all_steps"] > line["steps"] for line in lines)
    assert not (tmp_path / "curves.unfinished").exists()


def test_positives_in_the_pool_are_counted():
    train = pets().train
    rows = list(figure_positives.drawn(train, 8))
    found = {(row.similar, row.beta, row.eta): row for row in rows}
    assert len(found) == 2 * len(figure_positives.BETAS) * len(figure_positives.ETAS)
    for row in rows:  # two labels a point: one of its own at most with beta = 1, both from beta = 2 on
        assert min(row.beta, 2) <= row.positives <= 2
        assert row.pool <= len(train.labels)
    assert found[True, 1, 0].positives > 1  # drawn for a neighbour
    page = "\n".join(figure_positives.positives_page(train, rows))
    assert "| 3 | 6 | 2.00 |" in page
    assert page.count("confirmed here") == 3


def test_rare_labels_have_high_inverse_propensities_and_are_drawn_more(tmp_path):
    train = pets().train  # four labels with six points each, 24 with one
    inverse = {train.dataset: figure_propensities.inverse_of(train)}
    assert (inverse["pets"][4:] > inverse["pets"][:4].max()).all()
    figure_propensities.draw_shares(inverse, tmp_path / "propensities.svg")
    svg(tmp_path / "propensities.svg")
    page = "\n".join(figure_propensities.propensities_page([train], inverse, "propensities.svg"))
    share, drawn = (float(cell.strip(" %")) for cell in page.split("| 86% |")[1].split("|")[:2])
    assert share == 50 and drawn > 60
    assert "positives: **confirmed here**" in page
