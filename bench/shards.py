"""Training over label shards: time and bytes of a step, the plan past one machine, ten million labels here.

    python bench/shards.py measure        # 1 process of two threads, 2 of one, bytes of 4 → scaling-training.jsonl
    python bench/shards.py table          # beside the estimate for 1 M, 10 M, 100 M labels → scaling-training.md
    python bench/shards.py ten-million    # 10 M labels x 128 dimensions, 200 steps in one process, its peak memory

Both files are in results/. Points, batches and pools as in bench/step_scale.py. "pool" is frugal: label rows and label
texts. "rows" is the same without label texts. Bytes are counted as a ring sends them; the loopback device of the
machine counts them too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINES, TABLE = ROOT / "results" / "scaling-training.jsonl", ROOT / "results" / "scaling-training.md"
LABELS, STEPS, NETWORKS = 200_000, 30, (1, 10, 25)  # the last: Gbit a second
LATENCY = 5e-5  # seconds until another machine has heard something
PLANNED = ((1_000_000, (1, 2, 4)), (10_000_000, (1, 4, 16)), (100_000_000, (4, 16, 64)))
KINDS = {"pool": {}, "rows": {"classifier.text": None}}
MANY = {"encoder.dim": 128, "training.optimizer": "adagrad"}


def recipe_of(settings: dict[str, Any]) -> Any:
    from step_scale import pooled

    recipe = pooled("frugal")
    for path, value in settings.items():
        recipe = recipe.override(path, value)
    return recipe


def loopback() -> int:
    """Return the bytes that the loopback device has sent, of all processes of the machine."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next((int(line.split()[9]) for line in lines if line.strip().startswith("lo:")), 0)


def child(kind: str, labels: int, steps: int) -> None:
    from step_scale import made_up, milliseconds

    from longtail.machine import memory_usage
    from longtail.shards import joined

    with joined() as group:
        loop = made_up(recipe_of(KINDS[kind]), labels)
        milliseconds(loop, 1)  # compiles
        group.wait()
        before, calls, wire, worked = group.sent, group.calls, loopback(), time.process_time()
        spent, pool = milliseconds(loop, steps)
        group.wait()
        if group.first:
            every, peak = steps + 5, (memory_usage() or (0, 0))[1]
            line = {"kind": kind, "labels": labels, "pool": pool, "processes": group.size}
            line |= {"threads": int(os.environ["OMP_NUM_THREADS"]), "peak": peak}
            line |= {"sent": (group.sent - before) // every, "calls": (group.calls - calls) // every}
            line |= {"loopback": (loopback() - wire) // every // group.size}
            line |= {"cpu": round(1000 * (time.process_time() - worked) / every, 1)}  # ms of all threads, a step
            print(json.dumps(line | {"milliseconds": round(spent, 2)}))


def measured(kind: str, processes: int, threads: int) -> dict[str, Any]:
    from longtail.cli.launch import free_port

    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, __file__, "child", kind, str(LABELS), str(STEPS if processes < 4 else 5)]
    there = {**os.environ, **shared, "OMP_NUM_THREADS": str(threads)}
    started = [
        subprocess.Popen(command, env={**there, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(processes)
    ]
    said = [process.communicate()[0] for process in started]
    assert not any(process.returncode for process in started), "a process failed"
    line: dict[str, Any] = json.loads(said[0])
    return line


def measure() -> None:
    lines = []
    for kind in KINDS:
        for processes, threads in ((1, 2), (1, 1), (2, 1), (4, 1)):
            lines.append(measured(kind, processes, threads))
            print(lines[-1], flush=True)
    LINES.write_text("".join(json.dumps(line) + "\n" for line in lines))


def sizes(labels: int, recipe: Any, processes: int) -> Any:
    from step_scale import PER_POINT, PER_TEXT, POINTS, WORDS

    from longtail.records import Sizes

    found = Sizes(POINTS, labels, POINTS * PER_POINT, PER_TEXT, WORDS)
    return replace(recipe.sizes(found), points=POINTS, pairs=POINTS * PER_POINT, processes=processes)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def seen(lines: list[dict[str, Any]]) -> Iterator[Sequence[str]]:
    for line in lines:
        first = next(one for one in lines if one["kind"] == line["kind"])["milliseconds"]
        recipe, spent = recipe_of(KINDS[line["kind"]]), line["milliseconds"]
        foreseen = recipe.total_cost(sizes(LABELS, recipe, line["processes"])).sent
        timed = [f"{spent:.1f}", f"{spent / first:.2f}"] if line["processes"] < 4 else ["", ""]
        bytes_ = [f"{each / 1e6:.2f}" for each in (line["sent"], foreseen, line["loopback"])]
        which = [line["kind"], f"{line['processes']} x {line['threads']}"]
        cpu = f"{line['cpu']:.0f}" if "cpu" in line else ""
        yield [*which, *timed, cpu, *bytes_, str(line["calls"]), f"{line['peak'] / 1e9:.2f}"]


def planned(lines: list[dict[str, Any]]) -> Iterator[Sequence[str]]:
    from longtail.estimates import estimate
    from longtail.records import Sizes

    for labels, counts in PLANNED:
        for kind, settings in KINDS.items():
            one, two = (
                next(
                    line["cpu"]
                    for line in lines
                    if (line["kind"], line["processes"], line["threads"]) == (kind, count, 1)
                )
                for count in (1, 2)
            )
            parted = max(0.0, 2 * (one - two))  # what processes share; the rest each of them does
            calls = next(line["calls"] for line in lines if line["kind"] == kind and line["processes"] == 2)
            for count in counts:
                given = Sizes(3 * labels, labels, 9 * labels, 6, 500_000)
                adam, adagrad = (
                    estimate(
                        replace(recipe_of(settings | MANY | {"training.optimizer": name}), voices=(), augment=()),
                        given,
                        processes=count,
                    )
                    for name in ("adam", "adagrad")
                )
                waits = 1e3 * LATENCY * calls * (count > 1)
                each = parted / count + (one if count == 1 else max(one, two)) - parted
                steps = [each + waits + 8e3 * adam.sent_bytes / (speed * 1e9) for speed in NETWORKS]
                memory = [f"{needs.memory_bytes / 1e9:.1f}" for needs in (adam, adagrad)]
                sent = f"{adam.sent_bytes / 1e6:.2f}"
                yield [f"{labels:,}", kind, str(count), *memory, sent, *(f"{step:.0f}" for step in steps)]


def table() -> None:
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    head = ("kind", "processes x threads", "ms a step", "÷ 1 x 2", "CPU ms of each")
    bytes_ = ("MB sent a step", "foreseen", "loopback")
    plan = ("labels", "kind", "processes", "GB a process, adam", "adagrad", "MB sent a step")
    out = ["# Training over label shards, and what it takes past one machine\n", NOTE, "## Measured\n"]
    out.append(f"{LABELS:,} labels, 256 dimensions, batches of 512; foreseen by the estimate.\n")
    out += grid((*head, *bytes_, "calls", "peak GB"), seen(lines))
    out += ["\n## Foreseen\n", PLAN.format(latency=1e6 * LATENCY)]
    out += grid((*plan, *(f"ms a step, {speed} Gbit" for speed in NETWORKS)), planned(lines))
    TABLE.write_text("\n".join(out) + "\n")


NOTE = """`python bench/shards.py measure`, then `python bench/shards.py table`, on two cores. One process of two
threads beside two processes of one thread each, which is all that this machine can run side by side; of four only the
bytes mean something. Long benchmarks and other tests ran beside it (load average 5 to 6), so that the times of two
threads, which wait for each other at full speed, are far too high: only the CPU time of processes with one thread can
be compared. Words are drawn at random here, and a batch has more different ones than texts would have, which is what
the estimate foresees.
"""
PLAN = """128 dimensions; three points for each label, with three labels each. Memory is that of each process: its part
of the label rows and of their optimiser state, the points, the word vectors, and the whole label rows twice, when the
model is put together and written, which is what does not shrink. It is frugal without voices and Gandalf. A step is
the CPU time of one thread here, of which the part falls with the processes that two of them were seen to share (nothing
with label texts: words are most of it), and what it sends; {latency:.0f} µs for each call. None of it was run on
several machines.
"""


def ten_million() -> None:
    from step_scale import made_up, milliseconds

    from longtail.machine import memory_usage

    began = time.perf_counter()
    loop = made_up(recipe_of(MANY), 10_000_000)
    ready = time.perf_counter() - began
    spent, pool = milliseconds(loop, 200)
    peak = (memory_usage() or (0, 0))[1]
    print(f"10 M labels x 128, adagrad: {spent:.1f} ms a step (median of 200), pool {pool:,}, {ready:.0f} s to start, "
          f"peak {peak / 1e9:.1f} GB")  # fmt: skip
    assert peak < 20e9, "ten million labels must train in 20 GB"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["child", kind, labels, steps]:
            child(kind, int(labels), int(steps))
        case ["measure"]:
            measure()
        case ["table"]:
            table()
        case ["ten-million"]:
            ten_million()
        case _:
            sys.exit(__doc__)
