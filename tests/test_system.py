"""What Linux has and other systems lack: each absence is simulated."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from longtail import system, whole
from longtail.errors import ResourceError
from longtail.serve import run
from longtail.serve.settings import Settings

# Windows as far as Python shows it: modules, functions, flags and signals that are not there.
ELSEWHERE = """
    import os, signal, socket, mmap, sys
    for name in ("fcntl", "resource"):
        sys.modules[name] = None
    for name in ("getuid", "pwrite", "pread", "sysconf", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "killpg"):
        delattr(os, name)
    del socket.SO_REUSEPORT
    import ctypes
    library = ctypes.CDLL
    ctypes.CDLL = lambda name, *more, **options: library(str.__str__(name), *more, **options)  # None is refused
"""
USED = """
    import pathlib
    from longtail import system
    system.OPENS_FOLDERS, system.FORKS, system.msvcrt = False, False, Windows
    import longtail as lt
    texts = ["red cat", "old dog", "wild fox"] * 4
    folder = pathlib.Path(sys.argv[1])
    for _ in range(2):
        lt.fit("knn", texts, [[text.split()[1]] for text in texts]).save(folder / "run", force=True)
    index = lt.Index.load(folder / "run")
    index.add(["brown owl"])
    again = lt.Index.load(folder / "run")
    assert again.predict(["brown owl"], k=1)[0][0][1] == "brown owl"
    again.undo()
    assert lt.Index.load(folder / "run").predict(["my fox"], k=1)[0][0][1] == "fox"
    from longtail.serve.feedback import Feedback
    Feedback(folder / "feedback").note("a", {"text": "b", "id": 1}, "m", good=True)
    assert sorted(entry.name for entry in folder.iterdir()) == ["feedback", "run"]
    assert system.address_space() is None and system.memory() > 1e30
    print("works")
"""


def test_a_system_without_what_linux_has(tmp_path):
    code = textwrap.dedent(ELSEWHERE) + WINDOWS_LOCKS + textwrap.dedent(USED)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


WINDOWS_LOCKS = """
class Windows:
    LK_LOCK, LK_NBLCK, LK_UNLCK = 1, 2, 0
    @staticmethod
    def locking(handle, mode, count):
        assert count == 1 and os.lseek(handle, 0, os.SEEK_CUR) > 1e9
"""


def test_bytes_are_locked_where_files_are_not(tmp_path, monkeypatch):
    taken, calls = set(), []

    def locking(handle, mode, count):
        calls.append(mode)
        place = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if mode == "unlock":
            taken.remove(place)
        elif place in taken and len(calls) < 4:
            raise OSError(errno.EDEADLK if mode == "wait" else errno.EACCES, "taken")
        else:
            taken.add(place)

    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(
        system, "msvcrt", SimpleNamespace(LK_LOCK="wait", LK_NBLCK="try", LK_UNLCK="unlock", locking=locking)
    )
    (tmp_path / "file").write_text("some text")
    one, two = (os.open(tmp_path / "file", os.O_RDWR) for _ in range(2))
    system.lock(one)
    with pytest.raises(BlockingIOError):
        system.lock(two, wait=False)
    system.lock(two)  # waits for longer than Windows does at once
    assert calls == ["wait", "try", "wait", "wait"] and os.read(two, 4) == b"some"
    system.unlock(two)
    monkeypatch.setattr(system, "msvcrt", None)
    assert not system.lock(one)
    os.close(one)
    os.close(two)


def test_what_cannot_be_locked_is_swept_when_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "OPENS_FOLDERS", False)
    left, busy = (tmp_path / f".run.{digit * 12}.tmp" for digit in "ab")
    for folder in (left, busy):
        folder.mkdir()
    os.utime(left, (time.time() - 2 * whole.DAY,) * 2)
    whole.sweep(tmp_path)
    assert not left.exists() and busy.exists()


def test_places_of_a_file_without_reading_at_them(tmp_path, monkeypatch):
    for name in ("pread", "pwrite"):
        monkeypatch.delattr(os, name)
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert system.write_at(handle, b"abc", 2) == 3 and system.read_at(handle, 2, 3) == b"bc"
    os.close(handle)


def test_one_worker_where_ports_are_not_shared(monkeypatch):
    monkeypatch.setattr(run, "SHARES_PORTS", False)
    settings = Settings(("run",), host="127.0.0.1", port=0)
    run.listen(settings).close()
    with pytest.raises(ResourceError, match="--workers 1"):
        run.listen(settings, shared=True)
