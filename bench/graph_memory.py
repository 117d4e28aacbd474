"""Estimated against measured memory of `longtail graph build`, for a data set as it is and as an arrow folder.

    python bench/graph_memory.py ../shared/data/LF-MSDocsSeeAlsoTitles-87K

Every command runs in a child of its own; the system reports its peak memory. Prints a table in Markdown.
The peak of a child includes the memory of its parent at the start, so this process imports and loads nothing large.
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
    print("| read from | kind | estimated MB | measured MB | estimated / measured |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        longtail("data", "convert", path, Path(folder) / "arrow", "--format", "arrow")
        for name, place in (("jsonl", path), ("arrow", Path(folder) / "arrow")):
            for kind in KINDS:
                output, _ = longtail("graph", "build", place, "--kind", kind, "--dry-run", "--json")
                estimated = json.loads(output)["peak_bytes"]
                _, measured = longtail(
                    "graph", "build", place, "--kind", kind, "--out", Path(folder) / "graphs", "--force"
                )
                figures = f"{estimated / 1e6:.0f} | {measured / 1e6:.0f} | {estimated / measured:.2f}"
                print(f"| {name} | {kind} | {figures} |", flush=True)


def longtail(*args: object) -> tuple[str, int]:
    """Run a command; return its output and its peak memory in bytes."""
    command = [sys.executable, "-c", "from longtail.cli import main; main()", *map(str, args)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return output, used.ru_maxrss * UNIT


if __name__ == "__main__":
    main()
