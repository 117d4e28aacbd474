"""Whole files and folders or none, whoever is killed, and whoever writes at the same time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from longtail import whole
from longtail.errors import DataError
from longtail.whole import check_target, discard, exchange, held, hold, sweep, temporary, whole_file, whole_folder


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as partial:
        partial.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    with whole_file(target) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "run"
    with pytest.raises(ZeroDivisionError), whole_folder(target) as partial:
        (partial / "a").write_text("half")
        raise ZeroDivisionError
    assert not target.exists()
    with whole_folder(target) as partial:
        (partial / "a").write_text("1")
    with pytest.raises(DataError, match="force=True"), whole_folder(target):
        pass
    (target / "a").rename(target / "trn.jsonl")
    with whole_folder(target, force=True) as partial:
        (partial / "b").write_text("2")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_force_never_replaces_what_longtail_did_not_write(tmp_path, monkeypatch):
    target = tmp_path / "project"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="other things"), whole_folder(target, force=True):
        pass
    assert (target / "thesis.tex").read_text() == "years of work"
    monkeypatch.chdir(target)
    with pytest.raises(DataError), whole_folder(".", force=True):
        pass
    for names in (["config.json", "README.md"], ["train.py", "test.py"], ["trn.jsonl", "notes"]):
        other = tmp_path / names[0].replace(".", "-")
        other.mkdir()
        for name in names:
            (other / name).write_text("{}")
        with pytest.raises(DataError, match="other things"), whole_folder(other, force=True):
            pass
        assert len(list(other.iterdir())) == len(names)
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("trn.jsonl.gz", "lbl.jsonl.gz", "tst_filter.txt", "train_raw_ids.txt"):
        (mine / name).write_text("")
    with whole_folder(mine, force=True) as partial:
        (partial / "x").write_text("")
    assert [path.name for path in mine.iterdir()] == ["x"]


def test_a_failed_swap_puts_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "run"
    target.mkdir()
    (target / "trn.jsonl").write_text("old")
    real = Path.replace

    def unable(one, two):
        raise OSError(errno.ENOSYS, "cannot")

    def fails(self, other):
        if Path(other) == target and not self.name.endswith(".old"):
            raise OSError("no")
        return real(self, other)

    monkeypatch.setattr("longtail.whole._exchange", unable)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fails)
        with pytest.raises(OSError, match="no"), whole_folder(target, force=True) as partial:
            (partial / "trn.jsonl").write_text("new")
    assert (target / "trn.jsonl").read_text() == "old"
    with whole_folder(target, force=True) as partial:
        (partial / "trn.jsonl").write_text("new")
    assert (target / "trn.jsonl").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_writer_left_is_swept_and_what_is_being_written_is_not(tmp_path):
    dead = tmp_path / ".a.json.0123456789ab.tmp.json"
    dead.write_text("half")
    folder = tmp_path / ".a.json.0123456789cd.tmp"
    (folder / "more").mkdir(parents=True)
    mine = tmp_path / ".a.json.notes.tmp"
    mine.write_text("of the user")
    other = tmp_path / ".b.json.0123456789ab.tmp.json"
    other.write_text("of another file")
    with whole_file(tmp_path / "a.json") as first, whole_file(tmp_path / "a.json") as second:
        first.write_text("1")
        second.write_text("2")
        assert not dead.exists() and not folder.exists() and other.exists() and mine.exists()
    assert (tmp_path / "a.json").read_text() == "1"  # the last that was done
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name, "a.json"]


def test_a_kill_between_two_renames_is_mended(tmp_path, monkeypatch):
    def unable(one, two):
        raise OSError(errno.ENOSYS, "cannot")

    target = tmp_path / "run"
    target.mkdir()
    (target / "trn.jsonl").write_text("old")
    real, calls = Path.replace, []

    def killed(self, other):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, other)

    monkeypatch.setattr(whole, "_exchange", unable)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt), whole_folder(target, force=True) as partial:
        (partial / "trn.jsonl").write_text("new")
    assert not target.exists()
    with pytest.raises(DataError, match="exists already"):
        check_target(target)
    assert (target / "trn.jsonl").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_came_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "run"
    with pytest.raises(DataError, match="exists already"), whole_folder(target) as partial:
        (partial / "a").write_text("1")
        target.mkdir()
        (target / "b").write_text("of another process")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "trn.jsonl").write_text("old")
    (tmp_path / "run").symlink_to("real")
    with held(tmp_path / "run"), whole_folder(tmp_path / "run", force=True) as partial:
        (partial / "trn.jsonl").write_text("new")
    assert (tmp_path / "run").is_symlink() and (tmp_path / "real" / "trn.jsonl").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "run"]


def test_the_disk_has_every_file_before_the_name_changes(tmp_path, monkeypatch):
    done = []
    real_sync, real_rename = whole.synced, Path.rename
    monkeypatch.setattr(whole, "synced", lambda path: (done.append(path.name), real_sync(path)))
    monkeypatch.setattr(Path, "rename", lambda self, other: (done.append("rename"), real_rename(self, other))[1])
    with whole_folder(tmp_path / "run") as partial:
        (partial / "a").write_text("1")
        (partial / "b").write_text("2")
    assert sorted(done[:2]) == ["a", "b"] and done[2] == partial.name and done[3:] == ["rename", tmp_path.name]


def test_two_names_change_places(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    exchange(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one" / "two").exists() and (tmp_path / "two" / "one").exists()
    with pytest.raises(OSError, match="three"):
        exchange(tmp_path / "one", tmp_path / "three")


def test_one_holder_at_a_time(tmp_path):
    handle = hold(tmp_path)
    assert handle is not None and hold(tmp_path) is None
    entered = threading.Event()

    def wait() -> None:
        with held(tmp_path):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not entered.wait(0.1)
    os.close(handle)
    assert entered.wait(10)
    thread.join()
    assert hold(tmp_path / "absent") is None
    with held(tmp_path / "absent"):
        pass


def test_temporary_folders_of_killed_processes_are_swept(tmp_path, monkeypatch):
    code = "import os, signal; from longtail.whole import temporary\nwith temporary('test'): os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert killed.returncode == -9 and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary("test") as one, temporary("test") as two:
        assert sorted(tmp_path.iterdir()) == sorted([one, two])
        (one / "file").write_text("")
    assert not list(tmp_path.iterdir())


def test_a_discarded_folder_is_gone_at_once(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # a kill
    discard(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rounds", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_readers_always_find_a_whole_folder(tmp_path, rounds):
    target = tmp_path / "run"
    with whole_folder(target) as partial:
        (partial / "trn.jsonl").write_text("0")
    missing = []

    def read() -> None:
        while not done.is_set():
            if not (target / "trn.jsonl").exists():
                missing.append(time.monotonic())

    done, reader = threading.Event(), threading.Thread(target=read)
    reader.start()
    for number in range(rounds):
        with whole_folder(target, force=True) as partial:
            (partial / "trn.jsonl").write_text(str(number))
    done.set()
    reader.join()
    assert not missing and (target / "trn.jsonl").read_text() == str(rounds - 1)
