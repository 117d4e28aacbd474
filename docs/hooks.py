"""PAGE → PAGE: what docs/ shows of the rest of the project.

Links that lead out of docs/ become plain text, since the site holds only what is below it; pictures in results/ come
along. Examples in docstrings are code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
ABOVE = re.compile(r"(?:\.\./)*")
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.M)
RESULTS = Path(__file__).parent.parent / "results"


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures of results/."""
    for picture in sorted(RESULTS.glob("*.svg")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep the text of links that lead elsewhere."""
    depth = page.file.src_uri.count("/")

    def inside(found: re.Match[str]) -> str:
        above = ABOVE.match(found[2])
        return found[1] if above is not None and len(above[0]) // 3 > depth else found[0]

    return LINK.sub(inside, markdown).replace("](../results/", "](results/")


class Examples(griffe.Extension):
    """Docstrings whose examples are blocks of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
