"""Labels that no training has seen: a tenth of the labels is held out, and added by text afterwards.

    python bench/zero_shot.py unidec depsl frugal astec knn --data LF-MDNSeeAlsoTitles-6K

Each recipe is trained without the held-out labels, saved, served, and given them by `Index.add`. Measured are the test
points that have one: how many of their held-out labels are among the ten best of all labels. The same command goes on
after a stop; results/zero-shot.jsonl holds the lines, results/zero-shot.md the table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.bench.changes import find_data
from longtail.bench.table import spread
from longtail.cli.console import with_settings
from longtail.data.dataset import Dataset, Split
from longtail.data.formats import load
from longtail.index import Index
from longtail.pipeline import fit
from longtail.recipe import Recipe, find_recipe
from longtail.types import TopK, contains

ROOT = Path(__file__).resolve().parent.parent
DEPTH = 10
COLUMNS = {"held out": "R@10 of held-out labels", "first": "P@1 of these points", "all": "R@10 of all their labels"}


def main() -> None:
    """Run what has no line yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--data", nargs="+", default=["LF-MDNSeeAlsoTitles-6K"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--share", type=float, default=0.1, help="of the labels that are held out (0.1)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all recipes")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "zero-shot", help="the results without ending")
    args = parser.parse_args()
    path = args.out.with_suffix(".jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for name in args.data:
        data = load(find_data(name))
        for recipe in args.recipes:
            for seed in args.seeds:
                key = {"data": name, "recipe": recipe, "set": args.set, "seed": seed, "share": args.share}
                if any(key.items() <= line.items() for line in lines):
                    continue
                print(f"{recipe} on {name}, seed {seed}", file=sys.stderr)
                settled = with_settings(find_recipe(recipe), args.set).override("seed", seed)
                lines.append(key | measured(settled, data, args.share, seed))
                with path.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    command = shlex.join(["python", "bench/zero_shot.py", *sys.argv[1:]])
    args.out.with_suffix(".md").write_text(page(lines, command))


def measured(recipe: Recipe, data: Dataset, share: float, seed: int) -> dict[str, float]:
    """Train without some labels, add them, and measure the test points that have one."""
    count = len(data.train.labels)
    held = np.sort(np.random.default_rng([seed, 7]).choice(count, round(share * count), replace=False))
    kept = np.setdiff1d(np.arange(count), held)
    began = time.perf_counter()
    model = fit(recipe, without_labels(data.train, kept))
    seconds = time.perf_counter() - began
    texts = data.train.labels.texts
    assert texts is not None, "labels are added by their texts"
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        index = Index.load(Path(folder) / "model")
        index.add(texts.take(held).tolist())
        test = data.test
        points = np.flatnonzero(np.asarray((test.targets[:, held] > 0).sum(axis=1)).ravel())
        test = test.take(points)
        spare = int(np.diff(test.excluded.indptr).max(initial=0))
        found = index.predict(test.need_texts("zero-shot").tolist(), k=DEPTH + spare)
    order = np.append(np.concatenate([kept, held]), -1)  # labels of the index to those of the data
    topk = TopK(order[found.labels].astype(np.int32), found.scores).without(test.excluded, DEPTH)
    right, new = contains(test.targets, topk.labels), np.isin(topk.labels, held)
    wanted = np.asarray((test.targets[:, held] > 0).sum(axis=1)).ravel()
    values = {
        "held out": np.mean((right & new).sum(axis=1) / np.minimum(wanted, DEPTH)),
        "first": np.mean(right[:, 0]),
        "all": np.mean(right.sum(axis=1) / np.minimum(np.diff(test.targets.indptr), DEPTH)),
    }
    return {name: round(100 * float(value), 3) for name, value in values.items()} | {
        "points": len(points), "labels": len(held), "seconds": round(seconds, 1),
    }  # fmt: skip


def without_labels(train: Split, kept: NDArray[np.int64]) -> Split:
    """Leave out labels, and points that have no others."""
    labels = train.labels
    labels = replace(
        labels, count=len(kept), texts=None if labels.texts is None else labels.texts.take(kept),
        ids=None if labels.ids is None else labels.ids.take(kept),
        features=None if labels.features is None else labels.features[kept],
    )  # fmt: skip
    fewer = replace(train, labels=labels, targets=train.targets[:, kept], excluded=train.excluded[:, kept])
    return fewer.take(np.flatnonzero(np.diff(fewer.targets.indptr)))


def page(lines: list[dict[str, Any]], command: str) -> str:
    """Write the results as Markdown."""
    text = [
        "# Labels that came after training", "", f"    {command}", "",
        "A tenth of the labels is held out of training and added by text afterwards. Measured on the test points that",
        "have one of them, against all labels, in percent; the median over seeds, with the range in brackets. knn has",
        "label texts and the words of points. These are not the standard XMC benchmarks: compare rows with each other.",
    ]  # fmt: skip
    for data in dict.fromkeys(line["data"] for line in lines):
        text += ["", f"## {data}", "", "| recipe | " + " | ".join(COLUMNS.values()) + " | points | training s |"]
        text += ["|---|" + "---:|" * (len(COLUMNS) + 2)]
        own = [line for line in lines if line["data"] == data]
        for recipe in dict.fromkeys((line["recipe"], *line["set"]) for line in own):
            rows = [line for line in own if (line["recipe"], *line["set"]) == recipe]
            cells = [spread([row[name] for row in rows], name) for name in (*COLUMNS, "points", "seconds")]
            text.append(f"| {' '.join(recipe)} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
