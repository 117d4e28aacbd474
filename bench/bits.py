"""Losses of every step and served scores of the golden recipes, bit for bit, before and after a change.

python bench/bits.py write before.json      # with the tree of the old commit on PYTHONPATH
python bench/bits.py write after.json
python bench/bits.py compare before.json after.json

One thread, one machine: other processors round otherwise. The recipes are those of tests/golden/scores.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def measure() -> dict[str, Any]:
    import torch
    from golden.corpus import answers

    from longtail.recipe import recipe_of
    from longtail.training.loop import Loop

    torch.set_num_threads(1)
    golden = json.loads((Path(__file__).resolve().parent.parent / "tests/golden/scores.json").read_text())
    results: dict[str, Any] = {}
    losses: list[str] = []
    real = Loop._step

    def record(self: Loop, *rest: Any) -> float:
        losses.append((value := real(self, *rest)).hex())
        return value

    Loop._step = record
    for name, entry in golden.items():
        losses.clear()
        topks = answers(recipe_of(entry["recipe"]))
        scores = {key: [[float(x).hex() for x in row] for row in topk.scores] for key, topk in topks.items()}
        labels = {key: topk.labels.tolist() for key, topk in topks.items()}
        results[name] = {"losses": list(losses), "labels": labels, "scores": scores}
        print(f"{name}: {len(losses)} losses")
    return results


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    different = 0
    for name, entry in before.items():
        for part, value in entry.items():
            if after.get(name, {}).get(part) != value:
                different += 1
                print(f"{name}: {part} differ")
    print(f"{len(before)} recipes, {different} differences")
    return different


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(json.dumps(measure()))
    elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        sys.exit(bool(compare(*(json.loads(Path(name).read_text()) for name in sys.argv[2:]))))
    else:
        sys.exit(__doc__)
