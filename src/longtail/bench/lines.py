"""JOBS → LINES: run the jobs that have no line yet, one at a time, and append one JSON line for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from longtail.bench.peers import absent
from longtail.bench.points import compared
from longtail.bench.suite import Job, Suite, key_of, training_of
from longtail.errors import DataError
from longtail.system import lock
from longtail.types import Progress

Line: TypeAlias = dict[str, Any]
Begin: TypeAlias = Callable[[Job, int, int], AbstractContextManager[Progress | None]]
FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:;,'\"]+/)+")  # of absolute paths


def run_suite(suite: Suite, out: Path, *, only: Iterable[str] = (), begin: Begin | None = None) -> list[Line]:
    """Run the jobs that have no line yet and append their lines; returns the new ones, failed and skipped ones too.

    Lines of the suites that this one reuses are taken over. A killed suite continues where it was: finished jobs have
    their lines, and an unfinished training continues from its checkpoint in the folder `OUT.unfinished`.
    `begin(job, number, total)` opens the progress of one job.
    """
    new = []
    points = out.with_suffix(".points") if suite.intervals else None
    with _locked(out):
        done = {key for key, line in latest(read_lines(out, repair=True)).items() if "error" not in line}
        remaining = [job for job in suite.jobs(only) if job.key not in done]
        others = [line for name in suite.reuse for line in read_lines(out.with_name(f"{name}.jsonl"))]
        trainings = {job.key: training_of(job) for job in remaining}
        for number, job in enumerate(remaining, 1):
            if job.key in done:  # with a job before it that had the same training
                continue
            jobs, results = [job], _taken_over(job, others)
            if not results:
                if reason := absent(job):
                    new.append({**job.described(), "skipped": reason})
                    continue
                same = [one for one in remaining[number:] if trainings[one.key] == trainings[job.key]]
                jobs += [one for one in same if not _taken_over(one, others)]
                with begin(job, number, len(remaining)) if begin else nullcontext() as progress:
                    results = run_jobs(jobs, scratch_of(out, *jobs), progress, points)
            named = [{"suite": suite.name, **one.described()} for one in jobs]
            lines = [names | result | names for names, result in zip(named, results, strict=True)]
            _append(out, lines)
            new += lines
            done |= {one.key for one in jobs}
        if points is not None:
            _append(out, list(compared(suite, latest(read_lines(out)), points)))
        folder = unfinished(out)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return new


def _append(out: Path, lines: Sequence[Line]) -> None:
    """Append lines, on disk when it returns."""
    with out.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())


def _taken_over(job: Job, lines: Iterable[Line]) -> list[Line]:
    """Return the last of the lines that answer a job, if any does."""
    return [line for line in lines if job.is_answered_by(line)][-1:]


def run_jobs(
    jobs: Sequence[Job], scratch: Path, progress: Progress | None = None, points: Path | None = None
) -> list[Line]:
    """Run jobs of one training in a process of its own; a failure is a line for each, the message under `error`."""
    request = {"jobs": [asdict(job) for job in jobs], "scratch": str(scratch), "points": points and str(points)}
    command = [sys.executable, "-m", "longtail.bench.job"]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
        assert process.stdin is not None and process.stdout is not None
        results: list[Line] = []
        try:
            with suppress(BrokenPipeError):  # it ended before it read; the exit code is reported below
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            for answer in process.stdout:
                message = json.loads(answer)
                if "progress" in message:
                    if progress:
                        progress(*message["progress"])
                elif "results" in message:
                    results = message["results"]
                else:
                    results = [{"error": without_folders(message["error"])} for _ in jobs]
        finally:
            _end(process)
        if results:
            return results
        stderr.seek(0)
        last = stderr.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return [{"error": without_folders(": ".join([_ending(process.returncode), *last]))} for _ in jobs]


def _end(process: subprocess.Popen[str]) -> None:
    """Wait for a job that has answered; closing its input ends one that has not, with all that it started."""
    for pipe in (process.stdout, process.stdin):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    process.wait()


def _ending(code: int) -> str:
    """Describe how a process without an answer ended."""
    if code >= 0:
        return f"it ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"it was killed by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")


def without_folders(message: str) -> str:
    """Leave the folders of absolute paths out of a message: they mean nothing on another machine.

    >>> without_folders("/data/mine/trn.jsonl:3: no text")
    'trn.jsonl:3: no text'
    """
    return FOLDERS.sub("", message)


def unfinished(out: Path) -> Path:
    """Name the folder of the trainings that were not finished."""
    return out.with_name(out.name.removesuffix(".jsonl") + ".unfinished")


def scratch_of(out: Path, *jobs: Job) -> Path:
    """Name the folder in which the training of these jobs can be continued."""
    return unfinished(out) / hashlib.sha256("\n".join(job.key for job in jobs).encode()).hexdigest()[:16]


def read_lines(out: Path, *, repair: bool = False) -> list[Line]:
    """Read the lines; a last one that a kill cut short is left out, and with `repair` cut off."""
    if not out.exists():
        return []
    content = out.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if repair and len(whole) < len(content):
        with out.open("rb+") as file:
            file.truncate(len(whole))
    lines = []
    for number, raw in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError) as reason:
            raise DataError(f"not JSON ({reason})", file=out, line=number, remedy="delete the line") from None
        if not isinstance(line, dict):
            raise DataError("not an object", file=out, line=number, remedy="delete the line")
        lines.append(line)
    return lines


def latest(lines: Iterable[Line]) -> dict[str, Line]:
    """Keep the last line of each job."""
    return {key_of(line): line for line in lines}


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep a second suite from writing to the same file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as file:
        try:
            lock(file.fileno(), wait=False)
        except BlockingIOError:
            raise DataError("another bench is writing here", file=out, remedy="wait for it, or give --out") from None
        yield
