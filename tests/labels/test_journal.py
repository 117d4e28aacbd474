"""Changes of labels survive crashes, full disks and other writers; damage is seen."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time

import pytest

from longtail.errors import DataError, ModelError, ResourceError
from longtail.labels.journal import FILE, Added, Journal, Removed


def journal(folder, model="m", current=None):
    opened = Journal(folder, model, lambda: current or model)
    opened.refresh()
    return opened


def test_changes_are_seen_by_others_and_undone_one_by_one(tmp_path):
    one, other = journal(tmp_path), journal(tmp_path)
    one.append(Added(("red cat",), ("a7",)))
    one.append(Removed((3, 0)))
    assert other.refresh() and not other.refresh()
    assert other.changes == one.changes == (Added(("red cat",), ("a7",)), Removed((3, 0)))
    assert other.undo() == Removed((3, 0))
    assert one.refresh() and one.changes == (Added(("red cat",), ("a7",)),)
    one.undo()
    with pytest.raises(DataError, match="no change"):
        one.undo()
    assert journal(tmp_path).changes == ()


def test_nothing_to_undo_leaves_no_file(tmp_path):
    with pytest.raises(DataError, match="no change"):
        journal(tmp_path).undo()
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_was_cut_off_is_ignored_and_mended(tmp_path):
    journal(tmp_path).append(Added(("cat",)))
    journal(tmp_path).append(Added(("dog",)))
    whole = (tmp_path / FILE).read_bytes()
    first = whole.rindex(b"\n", 0, -1) + 1
    for end in range(first, len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        opened = journal(tmp_path)
        assert opened.changes == (Added(("cat",)),), end
    opened.append(Added(("fox",)))
    assert journal(tmp_path).changes == (Added(("cat",)), Added(("fox",)))


def test_every_changed_byte_before_the_last_record_is_seen(tmp_path):
    for name in ("cat", "dog"):
        journal(tmp_path).append(Added((name,)))
    whole = (tmp_path / FILE).read_bytes()
    end = whole.rindex(b"\n", 0, -1)
    for place in range(end):
        (tmp_path / FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ModelError, match=FILE):
            journal(tmp_path)


def test_a_record_cannot_be_dropped_or_moved(tmp_path):
    for name in ("cat", "dog", "fox"):
        journal(tmp_path).append(Added((name,)))
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    for order in ((0, 2, 3), (0, 2, 1, 3), (1, 2, 3)):
        (tmp_path / FILE).write_bytes(b"".join(lines[place] for place in order))
        with pytest.raises(ModelError, match="changed since"):
            journal(tmp_path)


def test_the_journal_of_another_model_is_refused(tmp_path):
    journal(tmp_path).append(Added(("cat",)))
    with pytest.raises(ModelError, match="another model"):
        journal(tmp_path, "other")
    with pytest.raises(ModelError, match="was replaced"):
        journal(tmp_path, "m", current="other").append(Added(("dog",)))


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("keep me")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        Journal(tmp_path, "m", lambda: "m").append(Added(("cat",)))
    assert (tmp_path / "elsewhere").read_text() == "keep me"


def test_a_full_disk_changes_nothing(tmp_path):
    one = journal(tmp_path)
    one.append(Added(("cat",)))
    before = (tmp_path / FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
    try:
        with pytest.raises(ResourceError, match="nothing was changed"):
            one.append(Added(("dog" * 100,)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / FILE).read_bytes() == before
    one.append(Added(("fox",)))
    assert journal(tmp_path).changes == (Added(("cat",)), Added(("fox",)))


WRITER = """
import sys
from pathlib import Path
from longtail.labels.journal import Added, Journal
journal = Journal(Path(sys.argv[1]), "m", lambda: "m")
for number in range(10**6):
    journal.append(Added((f"label {number} " + "x" * 20000,)))
    print(number, flush=True)
"""


def test_a_kill_loses_nothing_that_was_confirmed(tmp_path):
    for round_ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            confirmed = [json.loads(writer.stdout.readline()) for _ in range(3)]
            time.sleep(0.002 * round_)
            writer.send_signal(signal.SIGKILL)
            confirmed += [json.loads(line) for line in writer.stdout.read().splitlines()]
        opened = journal(tmp_path)
        kept = [int(change.texts[0].split()[1]) for change in opened.changes]
        assert kept[: len(confirmed)] == confirmed and len(kept) <= len(confirmed) + 1  # written, but not yet confirmed
        for _ in kept:
            opened.undo()


def test_two_writers_take_turns(tmp_path):
    writers = [journal(tmp_path), journal(tmp_path)]
    for number in range(10):
        writers[number % 2].append(Added((str(number),)))
    assert [change.texts[0] for change in journal(tmp_path).changes] == [str(number) for number in range(10)]
