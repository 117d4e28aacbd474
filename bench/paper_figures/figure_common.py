"""What the pages have in common."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from longtail.whole import whole_file

CAUTION = "These are not the data of the papers: compare which way a difference points, not the numbers."


def verdict(held: bool) -> str:
    """Say whether a statement held."""
    return "**confirmed here**" if held else "**not confirmed here**"


def paragraph(text: str) -> list[str]:
    """Break a text into lines."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def write_page(out: Path, command: str, lines: Sequence[str]) -> None:
    """Write a page, whole or not at all, with its command below the title."""
    path = out.with_suffix(".md")
    with whole_file(path) as partial:
        partial.write_text("\n".join([lines[0], "", f"    {command}", *lines[1:]]).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
