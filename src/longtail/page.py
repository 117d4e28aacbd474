"""NUMBERS AND PICTURES → ONE HTML FILE: no scripts, nothing from elsewhere, light and dark."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from longtail.report import GRID, INK, QUIET, SECOND
from longtail.whole import temporary, whole_file

COLOURS = {INK: "var(--ink)", SECOND: "var(--second)", QUIET: "var(--quiet)", GRID: "var(--grid)"}
COLOURS |= {"#000000": "currentColor", "#ffffff": "none"}
STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --text: #22262b; --soft: #5d646e; --grid: #e6e8eb;
  --ink: #1f5a96; --second: #c8553d; --quiet: #8a8f98; --right: #1c7a45; }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --text: #e4e7eb; --soft: #a3abb6; --grid: #333a42;
  --ink: #6cacea; --second: #ef8b74; --quiet: #8f97a3; --right: #62c98d; } }
body { background: var(--paper); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 62rem; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p, figcaption, caption { color: var(--soft); } p { margin: .3rem 0; }
.wide { overflow-x: auto; max-width: 100%; } .wide:focus-visible { outline: 2px solid var(--ink); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
thead th { color: var(--soft); font-weight: 600; } tbody th { font-weight: 600; overflow-wrap: break-word; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.best { font-weight: 700; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; } svg { width: 100%; height: auto; fill: currentColor; }
.examples { table-layout: fixed; min-width: 38rem; overflow-wrap: anywhere; } .examples th:first-child { width: 26%; }
mark { background: color-mix(in srgb, var(--second) calc(var(--share) * 60%), transparent); color: var(--text); }
@media (max-width: 40rem) { body { padding: 1.2rem .8rem 3rem; } table { font-size: .85rem; }
  th, td { padding: .3rem .5rem; } tbody th { max-width: 11rem; } .examples { min-width: 34rem; } }
ol { margin: 0; padding-left: 1.3rem; } .right { color: var(--right); font-weight: 600; }
"""


@dataclass
class Page:
    """A page that grows from top to bottom; every text is escaped."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def words(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p>{escape(text)}</p>")

    def marked(self, words: Sequence[tuple[str, float]]) -> None:
        """Add a text whose words are the more marked the more they weigh."""
        largest = max((weight for _, weight in words), default=0) or 1
        spans = " ".join(
            f'<mark style="--share:{weight / largest:.2f}" title="{weight:.1%}">{escape(word)}</mark>'
            for word, weight in words
        )
        self.parts.append(f"<p>{spans}</p>")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table with names in the first column; numbers are aligned, and the best of a column is bold."""
        best = {
            place: max(row[place] for row in rows)
            for place in range(1, len(heads))
            if rows and all(isinstance(row[place], float) for row in rows)
        }
        body = []
        for name, *cells in rows:
            shown = [f'<th scope="row">{breakable(str(name))}</th>']
            for place, cell in enumerate(cells, 1):
                number = isinstance(cell, int | float)
                kind = ("number best" if best.get(place) == cell else "number") if number else ""
                text = f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if number else str(cell)
                shown.append(f'<td class="{kind}">{breakable(text)}</td>')
            body.append(f"<tr>{''.join(shown)}</tr>")
        self._add_table(heads, body, number=bool(best))

    def examples(self, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Sequence[tuple[str, bool]]]]]) -> None:
        """Add texts with lists of (label, is it right) beside them, one list for each head but the first."""
        body = []
        for text, lists in rows:
            cells = [f'<th scope="row">{breakable(text)}</th>']
            for labels in lists:
                entries = [
                    f'<li class="right">{breakable(name)} ✓</li>' if right else f"<li>{breakable(name)}</li>"
                    for name, right in labels
                ]
                cells.append(f"<td><ol>{''.join(entries)}</ol></td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        self._add_table(heads, body, kind="examples")

    def _add_table(self, heads: Sequence[str], body: list[str], *, number: bool = False, kind: str = "") -> None:
        kinds = ["", *[' class="number"' if number else ""] * (len(heads) - 1)]
        cells = [f'<th scope="col"{kind}>{escape(head)}</th>' for kind, head in zip(kinds, heads, strict=True)]
        self.parts.append(
            f'<div class="wide" role="group" tabindex="0" aria-label="{escape(heads[0])}: a table">'
            f'<table class="{kind}"><thead><tr>{"".join(cells)}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def pictures(self, drawings: Mapping[str, Callable[[Path], None]]) -> None:
        """Add pictures beside each other: a caption for each, and what draws it to an SVG file."""
        figures = []
        with temporary("page") as folder:
            for number, (caption, draw) in enumerate(drawings.items()):
                file = folder / f"{number}.svg"
                draw(file)
                drawn = inlined(file.read_text(encoding="utf-8"), caption)
                figures.append(f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>")
        self.parts.append(f'<div class="pictures">{"".join(figures)}</div>')

    def write(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        rule = "default-src 'none'; style-src 'unsafe-inline'"  # not even a script that slipped in would run
        text = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{rule}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1>\n" + "\n".join(self.parts) + "\n</body></html>\n"
        )
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")


def breakable(name: str) -> str:
    """Escape a text in which a line may end behind the dots of a name.

    >>> breakable("a.b <c> 1.5")
    'a.<wbr>b &lt;c&gt; 1.5'
    """
    return re.sub(r"(?<=\w)\.(?=[^\W\d])", ".<wbr>", escape(name))


def inlined(svg: str, title: str) -> str:
    """Prepare a picture of `report` for a page: colours by theme, no prologue, a name for those who cannot see it.

    >>> inlined('<?xml version="1.0"?><svg><path style="fill: #ffffff"/></svg>', "a & b")
    '<svg role="img" aria-label="a &amp; b"><path style="fill: none"/></svg>'
    """
    body = svg[svg.index("<svg") :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    for colour, name in COLOURS.items():
        body = body.replace(colour, name)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def read_curve(log: Path, column: str = "loss") -> list[float]:
    """Read one column of a training log, epoch by epoch; nothing if it is not there."""
    if not log.exists():
        return []
    with log.open(newline="", encoding="utf-8") as lines:
        return [float(row[column]) for row in csv.DictReader(lines) if row.get(column)]
