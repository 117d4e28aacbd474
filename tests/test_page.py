from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser

import numpy as np

from longtail.page import Page, inlined, read_curve
from longtail.report import draw_curves, draw_frequencies, draw_groups

HOSTILE = "<img src=x onerror=alert(1)>"


class Parser(HTMLParser):
    """Collect tags and attributes, and check that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "path", "use", "rect", "stop", "image", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag


def written(tmp_path):
    page = Page(HOSTILE)
    page.heading(HOSTILE)
    page.words(HOSTILE)
    page.table(("metric", "P@1", HOSTILE), [(HOSTILE, 60.0, 1), ("b", 70.0, 2)])
    page.examples(("text", "model"), [(HOSTILE, [[(HOSTILE, True), ("cat", False)]])])
    page.pictures(
        {
            HOSTILE: partial(draw_groups, ["head", "tail"], {"a": [1.0, 2.0], "b": [3.0, 4.0]}, title="$x$", unit="%"),
            "two": partial(draw_frequencies, np.array([5, 3, 1]), title="frequencies"),
            "three": partial(draw_curves, {"a": [3.0, 2.0, 1.0]}, title="training", unit="loss"),
        }
    )
    page.write(tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_one_file_without_scripts_in_which_nothing_is_taken_for_markup(tmp_path):
    text = written(tmp_path)
    parser = Parser()
    parser.feed(text)
    assert parser.open == []
    assert not {"script", "img", "link", "iframe"} & set(parser.tags)
    assert not [name for name, _ in parser.attributes if name.startswith("on")]
    links = [value for name, value in parser.attributes if name in ("href", "xlink:href", "src")]
    assert all(value.startswith("#") for value in links)
    assert text.count("<svg") == 3
    assert "&lt;img" in text


def test_pictures_follow_the_theme(tmp_path):
    text = written(tmp_path)
    assert "prefers-color-scheme: dark" in text
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert "var(--grid)" in picture
        assert not re.findall(r"#[0-9a-f]{6}\b", picture), "a colour that the dark theme cannot change"
    assert '<td class="number best">70.00</td>' in text
    assert '<td class="number">60.00</td>' in text
    assert '<li class="right">&lt;img src=x onerror=alert(1)&gt; ✓</li>' in text
    assert "<title>" not in inlined("<?xml?><svg><metadata><title>x</title></metadata></svg>", "y")


def test_tables_scroll_and_names_break(tmp_path):
    page = Page("t")
    page.table(("metric", "x"), [("pandas.core.frame", "numpy.mean")])
    page.examples(("text", "model"), [("a.b", [[("scipy.stats.zscore", True)]])])
    page.write(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count('<div class="wide" role="group" tabindex="0"') == text.count("<table") == 2
    for name in ("pandas.<wbr>core.<wbr>frame", "numpy.<wbr>mean", "a.<wbr>b", "scipy.<wbr>stats.<wbr>zscore ✓"):
        assert name in text


def test_curves_come_from_logs(tmp_path):
    log = tmp_path / "log.csv"
    assert read_curve(log) == []
    log.write_text("stage,epoch,loss,P@1\na,1,2.5,\na,2,1.5,60\n")
    assert read_curve(log) == [2.5, 1.5]
    assert read_curve(log, "P@1") == [60.0]
    assert read_curve(log, "none") == []
