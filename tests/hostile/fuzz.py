"""SEED → DAMAGED INPUTS: models, data files, other files, requests and arguments; each is refused, or used.

As a program (`make fuzz`) it prints, as JSON, how many inputs of each kind were tried and how they ended. Every input
depends on (seed, kind, number) alone; each kind runs in a process of its own, which is started again behind an input
that ended it or that took too long. `--first` goes on where another run ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hostile.asks import arguments, bodies
from hostile.inputs import files, models, readers

PATIENCE, SETUP = 120, 1800  # seconds that one input may take, and what comes before the first
SHARES = {"bodies": 0.55, "readers": 0.2, "files": 0.2, "models": 0.04, "arguments": 0.01}  # as quick as each is
MEMORY = Path("/dev/shm")  # a file system without a disk, where there is one

KINDS = {"bodies": bodies, "readers": readers, "files": files, "models": models, "arguments": arguments}


def tried(kind: str, seed: int, start: int, count: int, place: Path, at: Callable[[int], None]) -> Iterator[str]:
    """Try inputs one after the other; `at` hears the number of each before it begins. Yields how it ended."""
    with patch.object(os, "fsync", lambda _: None), KINDS[kind](place) as case:
        for number in range(start, start + count):
            at(number)
            chance = random.Random(f"{seed}:{kind}:{number}")
            try:
                yield case(chance)
            except Exception as reason:
                yield f"wrong: {type(reason).__name__}: {str(reason)[:500]}"


def child(kind: str, seed: int, start: int, count: int) -> None:
    """Try inputs and write a line for each that ended badly, and the counts every second."""
    ends, told = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:

        def at(number: int) -> None:
            nonlocal told
            if time.monotonic() - told > 1 or number == start:
                told = time.monotonic()
                out.write(json.dumps({"at": number, **ends}) + "\n")
                out.flush()

        out = os.fdopen(os.dup(1), "w")
        for number, end in enumerate(tried(kind, seed, start, count, Path(place), at), start):
            if end.startswith("wrong"):
                out.write(json.dumps({"number": number, "wrong": end}) + "\n")
            ends[end.partition(":")[0]] += 1
        out.write(json.dumps({"at": start + count, **ends}) + "\n")
        out.flush()


def parent(kind: str, seed: int, first: int, count: int, until: float) -> dict[str, Any]:
    """Run a child until all inputs are tried, or the time is over; go on behind an input that ended it."""
    ends, wrong, start, count = Counter[str](), list[dict[str, Any]](), first, first + count
    while start < count and time.monotonic() < until:
        command = [sys.executable, "-m", "hostile.fuzz", "--child", kind, str(seed), str(start), str(count - start)]
        with (
            tempfile.TemporaryFile() as out,
            subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as running,
        ):
            size, quiet, over = 0, 0.0, False
            while running.poll() is None and not over:
                time.sleep(0.2)
                now = os.fstat(out.fileno()).st_size
                quiet = 0 if now != size else quiet + 0.2  # counted: a machine that sleeps hangs nowhere
                size, over = now, time.monotonic() > until or quiet > (PATIENCE if now else SETUP)
            running.kill()
            code = running.wait()
            out.seek(0)
            lines = [json.loads(line) for line in out.read().splitlines() if line.endswith(b"}")]
        wrong += [line for line in lines if "wrong" in line and "number" in line]
        last: dict[str, Any] = next((line for line in reversed(lines) if "at" in line), {"at": start})
        ends.update({name: value for name, value in last.items() if name != "at"})
        start = last["at"]
        if start < count and time.monotonic() < until:
            wrong.append({"number": f"{start} or soon after", "wrong": "hangs" if over else f"ended with {code}"})
            start += 1000
    return {"inputs": sum(ends.values()), **ends, "failures": wrong}


def main() -> None:
    """Try inputs of every kind and print how they ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="The number of the first input of each kind.")
    parser.add_argument("--minutes", type=float, default=10_000, help="Stop after so long, each kind after its share.")
    parser.add_argument("--kinds", nargs="+", choices=SHARES, default=[*SHARES])
    parser.add_argument("--child", nargs=4)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], *map(int, given.child[1:]))
        return
    sys.stderr.write(f"seed {given.seed}\n")
    found = {}
    total = sum(SHARES[kind] for kind in given.kinds)
    for kind in given.kinds:
        until = time.monotonic() + given.minutes * 60 / len(given.kinds)
        found[kind] = parent(kind, given.seed, given.first, max(1, int(given.inputs * SHARES[kind] / total)), until)
        sys.stderr.write(json.dumps({kind: found[kind]}) + "\n")
    count = sum(one["inputs"] for one in found.values())
    sys.stdout.write(json.dumps({"seed": given.seed, "inputs": count, "kinds": found}, indent=1) + "\n")
    sys.exit(any(one["failures"] for one in found.values()))


if __name__ == "__main__":
    main()
