from __future__ import annotations

from dataclasses import replace

from longtail.cli.report import Report, examples
from longtail.comparison import Comparison
from longtail.data.dataset import from_rows
from longtail.pipeline import evaluate, fit

TEXTS = [f"{colour} {animal}" for colour in ("red", "old", "wild", "small") for animal in ("cat", "dog", "<b>fox</b>")]
DATA = from_rows(
    {"train": (TEXTS, [[place % 3] for place in range(12)]), "test": (TEXTS[:4], [[0], [1], [2], [0]])},
    label_texts=["cat", "dog", "<b>fox</b>"],
)


def test_the_report_shows_what_the_terminal_shows(tmp_path):
    model = fit("knn", DATA.train)
    predictions = examples({"a": model, "b": model}, DATA.test, k=2, count=3)
    assert len(predictions) == 3
    for text, lists in predictions:
        assert len(lists) == 2
        assert lists[0][0] == (text.split(maxsplit=1)[1], True)
    result = evaluate(model, DATA.test)
    results = {"knn": result, "frugal-plain": result, "frugal": result}
    report = Report(
        title="t", about="a", comparison=Comparison(results), frequencies=model.frequencies, predictions=predictions,
        series=("frugal-plain", "frugal"), curves={"frugal-plain": [2.0, 1.0]},
    )  # fmt: skip
    report.write(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count("<svg") == 3
    assert "&lt;b&gt;fox&lt;/b&gt; ✓" in text
    assert f"{result.values['PSP@5']:.2f}" in text
    assert '<th scope="col">frugal-plain</th><th scope="col">frugal</th>' in text  # the names of the figures above
    replace(report, curves={}).write(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<svg") == 2
