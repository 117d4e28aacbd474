"""Ask a service for an hour while its model is replaced ten times and five of its workers are killed, as JSON.

    python bench/soak.py [RUN] [--minutes 60] [--workers 2] [--clients 4] [--pause 0.005] [--seed 0]

Without RUN a small `knn` is fitted to made-up texts. Exit code 1 if a request was lost (no answer, or another one than
200 and 503), if memory grew, or if the slowest hundredth of the answers became slower.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from longtail.data.dataset import from_rows
from longtail.pipeline import fit
from longtail.whole import whole_folder

RELOADS, KILLS, WINDOWS = 10, 5, 20
WORDS = [f"word{number}" for number in range(2000)]
GROWTH, SLOWER = 1.15, 2.0  # that are allowed between the first half and the second


def fitted(folder: Path) -> Path:
    """Fit a small model."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=8)) for _ in range(5000)]
    labels = [[draw.randrange(1000)] for _ in texts]
    names = [" ".join(draw.choices(WORDS, k=3)) for _ in range(1000)]
    fit("knn", from_rows({"train": (texts, labels)}, label_texts=names).train).save(folder)
    return folder


class Clock(threading.Thread):
    """Counts the seconds in which this process ran: a machine that slept, or was frozen, answers nobody."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asleep = 0.0  # seconds

    def run(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            self.asleep += now - before if now - before > 5 else 0
            before = now


class Asker(threading.Thread):
    """A client that asks all the time, on one connection or on a new one each time."""

    clock = Clock()

    def __init__(self, address: str, seed: int, keep: bool, pause: float) -> None:
        super().__init__(daemon=True)
        self.address, self.draw, self.keep, self.pause = address, random.Random(seed), keep, pause
        self.ended, self.times, self.answers, self.lost = False, list[float](), Counter[int](), list[str]()
        self.interrupted = 0  # requests that failed while the machine slept

    def run(self) -> None:
        client = httpx.Client(timeout=60)
        while not self.ended:
            if not self.keep:
                client.close()
                client = httpx.Client(timeout=60)
            body = {"texts": [" ".join(self.draw.choices(WORDS, k=6)) for _ in range(self.draw.choice([1, 1, 1, 8]))]}
            began, asleep = time.monotonic(), self.clock.asleep
            try:
                answer = client.post(f"{self.address}/v1/predict", json=body)
                self.answers[answer.status_code] += 1
                if answer.status_code not in (200, 503):
                    self.lost.append(f"{answer.status_code}: {answer.text[:200]}")
            except httpx.HTTPError as reason:
                time.sleep(1)  # the clock notices
                if self.clock.asleep == asleep:
                    self.lost.append(repr(reason))
                else:
                    self.interrupted += 1
            if self.clock.asleep == asleep:
                self.times.append(time.monotonic() - began)
            time.sleep(self.pause)
        client.close()

    def taken(self) -> list[float]:
        """Return the times since the last call."""
        times, self.times = self.times, []
        return times


def workers(pid: int) -> list[int]:
    """List the worker processes of a service."""
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(child)
        found += workers(child)
    return found


def memory(pids: list[int]) -> int:
    """Add up the memory of processes, shared pages in shares."""
    total = 0
    for pid in pids:
        try:
            total += int(re.search(r"Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) * 1024
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def replaced(run: Path) -> None:
    """Replace a model folder by a copy of itself."""
    with whole_folder(run, force=True) as folder:
        for file in run.iterdir():
            if not file.name.startswith("."):
                shutil.copyfile(file, folder / file.name)


def soak(run: Path, minutes: float, count: int, clients: int, seed: int, pause: float) -> dict[str, object]:
    """Ask, replace and kill; return what was seen."""
    command = [sys.executable, "-m", "longtail", "serve", str(run), "--port", "0", "--workers", str(count)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        told = list[str]()
        address = next(found[1] for line in service.stderr if (found := re.search(r"at (http://\S+)", line)))
        reader = threading.Thread(target=lambda: told.extend(service.stderr), daemon=True)
        reader.start()
        askers = [Asker(address, seed + place, keep=place % 2 == 0, pause=pause) for place in range(clients)]
        for thread in (Asker.clock, *askers):
            thread.start()
        seconds, began = minutes * 60, time.monotonic()
        events = sorted(
            [((place + 0.5) / RELOADS, "reload") for place in range(RELOADS)]
            + [((place + 0.8) / KILLS, "kill") for place in range(KILLS)]
        )
        draw, windows = random.Random(seed), list[dict[str, float]]()
        for window in range(WINDOWS):
            end = began + seconds * (window + 1) / WINDOWS
            while (now := time.monotonic()) < end:
                if events and now >= began + events[0][0] * seconds:
                    kind = events.pop(0)[1]
                    if kind == "reload":
                        replaced(run)
                    elif found := workers(service.pid):
                        os.kill(draw.choice(found), signal.SIGKILL)
                time.sleep(0.02)
            times = sorted(value for asker in askers for value in asker.taken())
            windows.append({
                "answers": len(times), "memory": memory([service.pid, *workers(service.pid)]),
                "p50": times[len(times) // 2] if times else 0.0, "p99": times[len(times) * 99 // 100] if times else 0.0,
            })  # fmt: skip
        for asker in askers:
            asker.ended = True
        for asker in askers:
            asker.join(90)
        service.send_signal(signal.SIGTERM)
        code = service.wait(60)
        reader.join(10)
    return {
        "minutes": minutes, "seed": seed, "workers": count, "clients": clients, "pause": pause, "exit_code": code,
        "answers": dict(sum((asker.answers for asker in askers), Counter())),
        "seconds_asleep": round(Asker.clock.asleep), "interrupted": sum(asker.interrupted for asker in askers),
        "lost": [line for asker in askers for line in asker.lost][:20],
        "reloads": sum("reloaded" in line and "not" not in line for line in told),
        "killed": sum("a worker died" in line for line in told), "windows": windows,
    }  # fmt: skip


def verdict(seen: dict[str, object]) -> list[str]:
    """Say what is wrong."""
    windows = seen["windows"]
    halves = windows[1 : WINDOWS // 2], windows[WINDOWS // 2 :]
    wrong = [f"{len(seen['lost'])} requests were lost"] if seen["lost"] else []
    wrong += [] if seen["exit_code"] == 0 else [f"the service ended with {seen['exit_code']}"]
    wrong += [] if seen["reloads"] >= RELOADS else [f"only {seen['reloads']} reloads"]
    wrong += [] if seen["killed"] == KILLS else [f"{seen['killed']} workers died"]
    for name, allowed in (("memory", GROWTH), ("p99", SLOWER)):
        first, second = (statistics.median(window[name] for window in half) for half in halves)
        if second > allowed * first:
            wrong.append(f"{name} grew from {first:.4g} to {second:.4g}")
    return wrong


def main() -> None:
    """Run it and print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.005, help="Seconds between the questions of a client.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = fitted(Path(place) / "run") if given.run is None else shutil.copytree(given.run, Path(place) / "run")
        seen = soak(run, given.minutes, given.workers, given.clients, given.seed, given.pause)
    seen["wrong"] = verdict(seen)
    print(json.dumps(seen, indent=1))
    sys.exit(bool(seen["wrong"]))


if __name__ == "__main__":
    main()
