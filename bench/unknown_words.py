"""Whether clean texts lose anything where unknown words are read as known ones.

    python bench/unknown_words.py LF-MDNSeeAlsoTitles-6K CVELibraries-4K --recipe linear

The recipe is trained once on each data set, and predicts the test texts twice: with unknown words left out, and as
they are read. The differences come with intervals over test points; results/unknown-words.md is the table.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

from longtail.bench.changes import find_data
from longtail.comparison import Difference, paired
from longtail.data.dataset import Dataset
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.labels.propensity import Propensity, frequencies
from longtail.pipeline import fit

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("data", nargs="+")
    asks.add_argument("--recipe", default="linear")
    asks.add_argument("--out", type=Path, default=ROOT / "results" / "unknown-words.md")
    asked = asks.parse_args()
    lines = [
        "# Clean texts, with unknown words left out and as they are read", "",
        f"    python bench/unknown_words.py {shlex.join(sys.argv[1:])}", "",
        f"`{asked.recipe}`, test points, one seed, in percent; 95 % intervals of a bootstrap over test points.", "",
        "| data | P@1, left out | read | difference | PSP@5, left out | read | difference |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name in asked.data:
        cells = [cell for one in measured(load(find_data(name)), asked.recipe) for cell in shown(one)]
        lines.append(f"| {Path(name).name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(data: Dataset, recipe: str) -> list[Difference]:
    """Compare what is predicted for the test texts."""
    model = fit(recipe, data.train)
    with patch.object(Words, "read", lambda *_: ()):
        without = model.predict_split(data.test, 5)
    inverse = Propensity.of(data.name).inverse(frequencies(data.train.targets), len(data.train))
    return paired(without, model.predict_split(data.test, 5), data.test.targets, inverse)


def shown(one: Difference) -> list[str]:
    """Write a difference as cells, bold where it is certain."""
    mark = "**" if one.certain else ""
    change = f"{mark}{one.difference:+.2f}{mark} [{one.low:+.2f}, {one.high:+.2f}]"
    return [f"{one.first:.2f}", f"{one.second:.2f}", change]


if __name__ == "__main__":
    main()
