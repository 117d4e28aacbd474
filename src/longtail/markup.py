"""ROWS → HTML: small tables for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


def html_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """Make a table with names in the first column; numbers are aligned to the right.

    >>> html_table(["a & b"], [["<i>"]]).partition("<tbody>")[::2]
    ('<table><thead><tr><th>a &amp; b</th></tr></thead>', '<tr><th>&lt;i&gt;</th></tr></tbody></table>')
    """
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = []
    for name, *cells in rows:
        shown = [f"<th>{escape(_cell(name))}</th>"]
        for cell in cells:
            style = ' style="text-align:right"' if isinstance(cell, int | float) else ' style="text-align:left"'
            shown.append(f"<td{style}>{escape(_cell(cell))}</td>")
        body.append(f"<tr>{''.join(shown)}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(value: Any) -> str:
    """Write a cell: floats with two digits, whole numbers with thousands."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
