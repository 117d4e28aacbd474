"""Under a limit of memory a command ends with one clear line and exit code 5, whatever a library does."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from conftest import ROOT
from small import board, short

import longtail as lt
from longtail import limits
from longtail.data.dataset import Dataset
from longtail.data.formats import write
from longtail.errors import ModelError, ResourceError
from longtail.estimates import Estimate, available, need_memory
from longtail.limits import cgroup, few_threads, in_words, is_shortage

MB = 2**20
QUIET = {name: value for name, value in os.environ.items() if name not in limits.THREADS}


def limited(megabytes: int, *command: object, env: dict[str, str] | None = None, seconds: float = 300):
    """Run Python with so much address space."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * MB, megabytes * MB))

    environment = QUIET | {"PYTHONPATH": str(ROOT / "src")} | (env or {})
    return subprocess.run(
        [sys.executable, *map(str, command)], preexec_fn=limit, capture_output=True, text=True, check=False,
        env=environment, timeout=seconds,
    )  # fmt: skip


def started(work: str, megabytes: int = 1000):
    """Run the starter with other work than a command."""
    code = f"def work():\n    {work}\nstart._run = work\nstart.main()"
    code = f"import os, signal, sys\nfrom longtail import start\n{code}"
    return limited(megabytes, "-c", code)


def test_what_means_that_there_was_too_little_memory():
    for reason in (
        MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread"),
        ImportError("libarrow.so: failed to map segment from shared object"), RuntimeError("std::bad_alloc"),
    ):  # fmt: skip
        assert is_shortage(reason)
        try:
            try:
                raise reason
            except type(reason):
                raise ModelError("damaged; train again") from None
        except ModelError as taken_for_something_else:
            assert is_shortage(taken_for_something_else)
    for reason in (ValueError("out of memory"), RuntimeError("a bug"), OSError(2, "no such file"), None):
        assert not is_shortage(reason)


@pytest.mark.parametrize("kind", ["current", "earlier"])
def test_the_group_of_a_container_is_read(tmp_path, monkeypatch, kind):
    new = kind == "current"
    mine, root = tmp_path / "cgroup", tmp_path if new else tmp_path / "memory"
    mine.write_text("0::/a/b\n" if new else "4:cpu:/x\n3:memory:/a/b\n")
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    monkeypatch.setattr(limits, "MINE", mine)
    assert cgroup() is None and in_words() == ""
    most, now = limits.CURRENT if new else limits.EARLIER
    (root / "a" / "b").mkdir(parents=True)
    for folder, size in ((root, "max" if new else str(2**62)), (root / "a", str(100 * MB)), (root / "a" / "b", "max")):
        (folder / most).write_text(size)
        (folder / now).write_text(str(30 * MB))
    assert cgroup() == (100 * MB, 30 * MB) and "100 MB of memory (cgroup)" in in_words()
    assert available() == 70 * MB


def test_the_address_space_decides_how_many_threads_there_are(monkeypatch):
    for name in limits.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "")
    monkeypatch.setattr(limits, "address_space", lambda: None)
    few_threads()
    assert not set(limits.THREADS) & set(os.environ)
    for size, most in ((4096 * MB, "4"), (500 * MB, "1")):
        monkeypatch.setattr(limits, "address_space", lambda size=size: size)
        monkeypatch.setenv("OMP_NUM_THREADS", "16")
        few_threads()
        assert {os.environ[name] for name in limits.THREADS} == {most}


@pytest.mark.parametrize(
    ("work", "code", "words"),
    [
        ("sys.exit(3)", 3, ""),
        ("return", 0, ""),
        ("os.abort()", 5, "signal SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 5, "signal SIGKILL"),
        ("os._exit(1)", 5, "a library, code 1"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, ""),
    ],
)
def test_whatever_ends_a_command_is_told_in_one_line(work, code, words):
    done = started(work)
    assert (done.returncode, done.stderr.count("\n")) == (code, int(code == 5)), done.stderr
    assert words in done.stderr and ("ulimit -v" in done.stderr) == (code == 5)


def test_without_a_limit_nothing_stands_between():
    code = "import os; from longtail import start; start._run = lambda: print(os.getpid()); start.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=QUIET | {"PYTHONPATH": str(ROOT / "src")}
    ) as running:
        if in_words():
            pytest.skip("a limit is set here")
        assert int(running.communicate()[0]) == running.pid


def test_a_command_that_hears_no_signal_is_killed_and_dies_with_the_one_that_waits():
    code = (
        "import os, signal, sys, time\nfrom longtail import start\nstart.GRACE = 1\ndef work():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)\n"
        "start._run, start.in_words = work, lambda: 'little'\nstart.main()"
    )
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=QUIET | {"PYTHONPATH": str(ROOT / "src")},
        ) as running:  # fmt: skip
            child = int(running.stdout.readline())
            running.send_signal(number)
            assert running.wait(30) == (5 if number == signal.SIGTERM else -9)
        end = time.monotonic() + 10
        while os.path.exists(f"/proc/{child}") and time.monotonic() < end:  # noqa: PTH110
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{child}")  # noqa: PTH110


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    train = board(40)
    write(Dataset(train.labels, {"train": train}, "board"), folder / "data", "jsonl")
    (folder / "texts.txt").write_text("word3\n")
    return folder


@pytest.fixture(scope="module")
def trained(place):
    lt.fit(short("frugal"), board(40)).save(place / "run")
    return place


COMMANDS = {
    "data check": ["data", "check", "data"],
    "train knn": ["train", "knn", "--data", "data", "--out", "new"],
    "train frugal": ["train", "frugal", "--data", "data", "--out", "new", "--set", "training.epochs=2"],
    "predict": ["predict", "run", "texts.txt"],
    "index": ["index", "run"],
    "serve": ["serve", "run", "--port", "0"],
}
QUICK = [("train knn", 100), ("train knn", 420)]
EVERY = [(name, size) for name in COMMANDS for size in (100, 300, 420, 500, 700, 1000, 1500, 2500)]


def judged(place, name: str, size: int) -> None:
    """Run a command under a limit: it ends well, or with one clear line; it never hangs."""
    code = (
        f"import os, sys; os.chdir({str(place)!r}); from longtail.start import main; sys.argv[0] = 'longtail'; main()"
    )
    try:
        done = limited(size, "-c", code, *COMMANDS[name], seconds=40 if name == "serve" else 300)
    except subprocess.TimeoutExpired as running:
        assert name == "serve" and b"serving" in (running.stderr or b""), running.stderr
        return
    last = done.stderr.splitlines()[-1]
    assert done.returncode in (0, 5), (done.returncode, done.stderr)
    assert done.returncode == 0 or (last.startswith("error: ") and "ulimit -v" in last), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode == 0:
        shutil.rmtree(place / "new", ignore_errors=True)


@pytest.mark.parametrize(("name", "size"), QUICK)
def test_a_small_limit_ends_in_one_line(place, name, size):
    judged(place, name, size)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), EVERY)
def test_every_command_ends_in_one_line_under_every_limit(trained, name, size):
    judged(trained, name, size)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("size", [1000, 1500, 2500])
def test_a_training_under_a_limit_hears_sigterm(trained, tmp_path, size, moment):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({size * MB}, {size * MB}))"
    code = f"import os, sys; os.chdir({str(trained)!r}); from longtail.start import main; sys.argv[0] = 'longtail'"
    more = ["--out", str(tmp_path / "new"), "--set", "training.epochs=100000"]  # more than anybody waits for
    with subprocess.Popen(
        [sys.executable, "-c", f"{limit}; {code}; main()", *COMMANDS["train frugal"][:4], *more],
        stderr=subprocess.PIPE, text=True, env=QUIET | {"PYTHONPATH": str(ROOT / "src")},
    ) as running:  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            running.wait(moment)
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=120)[1]  # killed after a minute
    assert running.returncode in (143, 5, -signal.SIGTERM) and "Traceback" not in said, (running.returncode, said)


def test_a_fit_that_a_limit_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr("longtail.estimates.address_space", lambda: 1)
    with pytest.raises(ResourceError, match=r"0\.0 GB are free"):
        need_memory(Estimate(10**12, 0, 0.0))
