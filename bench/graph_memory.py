"""Foreseen against measured memory of `longtail graph build`, for a data set as it is and as an arrow folder.

    python bench/graph_memory.py ../shared/data/LF-MSDocsSeeAlsoTitles-87K

Every command runs in a child of its own; the system says what was the most memory it held. Prints a table in Markdown.
A child counts from what its parent held when it was started, so that this process imports and loads nothing large.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = ("conditionals", "glas", "walk", "proximity")
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def main() -> None:
    """Build every kind of graph from both formats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    path = parser.parse_args().data
    print("| read from | kind | foreseen MB | measured MB | foreseen / measured |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        longtail("data", "convert", path, Path(folder) / "arrow", "--format", "arrow")
        for name, place in (("jsonl", path), ("arrow", Path(folder) / "arrow")):
            for kind in KINDS:
                told, _ = longtail("graph", "build", place, "--kind", kind, "--dry-run")
                foreseen = json.loads(told)["peak_bytes"]
                _, measured = longtail(
                    "graph", "build", place, "--kind", kind, "--out", Path(folder) / "graphs", "--force"
                )
                figures = f"{foreseen / 1e6:.0f} | {measured / 1e6:.0f} | {foreseen / measured:.2f}"
                print(f"| {name} | {kind} | {figures} |", flush=True)


def longtail(*args: object) -> tuple[str, int]:
    """Run a command; return what it printed and the most bytes that it held."""
    command = [sys.executable, "-c", "from longtail.cli import main; main()", *map(str, args)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return printed, used.ru_maxrss * UNIT


if __name__ == "__main__":
    main()
