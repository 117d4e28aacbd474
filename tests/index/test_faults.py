"""Damaged folders, attacks, kills and full disks: refused with a message, nothing lost, no code run."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from index.conftest import every

from longtail.artefact import build_artefact
from longtail.errors import LongtailError, ModelError, ResourceError
from longtail.folder import read_config, write_config
from longtail.index import Index
from longtail.labels.journal import FILE


@every
def test_every_changed_byte_is_refused(run):
    Index.load(run).add(["blue parrot"])
    for path in sorted(run.iterdir()):
        if path.name == FILE:
            continue  # tests/labels/test_journal.py
        raw = path.read_bytes()
        for place in {0, len(raw) // 2, len(raw) - 1}:
            path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
            with pytest.raises(LongtailError, match=str(run)):
                Index.load(run)
        for end in {0, len(raw) // 2, len(raw) - 2}:
            path.write_bytes(raw[:end])
            with pytest.raises(LongtailError, match=str(run)):
                Index.load(run)
        path.unlink()
        with pytest.raises(LongtailError, match=str(run)):
            Index.load(run)
        path.write_bytes(raw)
    assert len(Index.load(run).labels) == 49


@pytest.mark.parametrize("run", ["indexed"], indirect=True)
def test_a_large_folder_answers_while_its_checksums_are_compared(run, monkeypatch):
    monkeypatch.setattr("longtail.index.LARGE", 1)
    assert Index.load(run).predict(["cat"]).labels.shape == (1, 5)
    path = run / "weights.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    index = Index.load(run)
    deadline = time.monotonic() + 10
    with pytest.raises(ModelError, match=r"weights\.safetensors: changed"):
        while time.monotonic() < deadline:
            index.predict(["cat"])


@pytest.mark.parametrize("run", ["indexed"], indirect=True)
def test_folders_made_to_attack_run_no_code(run, tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'attacked'}",)

    config = read_config(run)
    served = config["index"]
    outside = tmp_path / "outside.safetensors"
    shutil.copy(run / served["file"], outside)
    for changes in (
        {"files": config["files"] | {"../outside.safetensors": "0"}},
        {"files": config["files"] | {"/etc/passwd": "0"}},
        {"files": ["weights.safetensors"]},
        {"index": served | {"file": "../outside.safetensors"}},
        {"index": served | {"file": ""}},
        {"index": served | {"surprise": 1}},
        {"index": {}},
        {"index": []},
        {"labels": 47},
        {"recipe": {"part": "os.system", "command": "touch x"}},
    ):
        write_config(run, config | changes)
        with pytest.raises(LongtailError):
            Index.load(run, verify=False)
    write_config(run, config)
    raw = (run / served["file"]).read_bytes()
    hostile = [pickle.dumps(Attack()), (2**63 - 1).to_bytes(8, "little") + raw[8:], raw[:8] + b"[" * 4000]
    for content in hostile:
        (run / served["file"]).write_bytes(content)
        with pytest.raises(LongtailError):
            Index.load(run, verify=False)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("run", ["indexed"], indirect=True)
def test_a_graph_that_leads_outside_is_refused(run):
    from longtail.files import read_arrays
    from longtail.search.hnsw import HNSW

    arrays = dict(read_arrays(next(run.glob("index_*"))))
    assert HNSW.of_arrays(arrays, 48, 16) is not None
    for name, place, value in (
        ("hnsw.neighbours", 0, 48),
        ("hnsw.neighbours", 3, -2),
        ("hnsw.levels", 0, 0),
        ("hnsw.levels", 0, 100),
        ("hnsw.settings", 0, 48),
        ("hnsw.settings", 0, -1),
        ("hnsw.settings", 1, 31),
        ("hnsw.settings", 1, 0),
        ("hnsw.settings", 2, 0),
    ):
        changed = {key: array.copy() for key, array in arrays.items()}
        changed[name][place] = value
        with pytest.raises(ModelError, match="make the index again"):
            HNSW.of_arrays(changed, 48, 16)
    for name, value in (("hnsw.rows", arrays["hnsw.rows"][1:]), ("hnsw.step", arrays["hnsw.step"] * np.nan)):
        with pytest.raises(ModelError, match="make the index again"):
            HNSW.of_arrays(arrays | {name: value}, 48, 16)


def test_a_full_disk_leaves_model_and_labels_as_they_were(run):
    index = Index.load(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, limits[1]))
    try:
        with pytest.raises(ResourceError, match="nothing was changed"):
            index.add(["blue parrot"])
        with pytest.raises(ResourceError, match="nothing was changed"):
            build_artefact(run, search="exact")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.stat().st_size}
    assert after == before and len(index.labels) == 48
    assert index.add(["blue parrot"]) == [48]


ADDER = """
import sys
from longtail.index import Index
index = Index.load(sys.argv[1])
print("ready", flush=True)
for number in range(10**6):
    print(index.add([f"new label {number}"])[0], flush=True)
"""


@pytest.mark.parametrize("kills", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_a_kill_during_add_loses_no_label(run, kills):
    random, known = np.random.default_rng(kills), 48
    for _ in range(kills):
        with subprocess.Popen([sys.executable, "-c", ADDER, str(run)], stdout=subprocess.PIPE, text=True) as adder:
            assert adder.stdout.readline() == "ready\n"
            seen = [int(adder.stdout.readline()) for _ in range(random.integers(1, 9))]
            time.sleep(random.uniform(0, 0.003))
            adder.send_signal(signal.SIGKILL)
            seen += [int(line) for line in adder.stdout.read().splitlines()]
        assert seen == list(range(known, known + len(seen)))
        index = Index.load(run)
        assert len(index.labels) - known - len(seen) in (0, 1)  # one may be written and not yet told
        assert index.labels.texts[seen[-1]] == f"new label {len(seen) - 1}"
        assert index.add(["one more"]) == [len(index.labels) - 1]
        known = len(index.labels)


@pytest.mark.parametrize("run", ["frugal", "indexed"], indirect=True)
def test_a_bag_model_is_served_without_torch(run):
    code = (
        "import sys; from longtail.index import Index; i = Index.load(sys.argv[1]); i.predict(['red cat']); "
        "i.explain('red cat', 0); heavy = {'torch', 'sklearn', 'transformers', 'longtail.pipeline'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("run", ["indexed"], indirect=True)
def test_an_index_file_that_is_lost_or_damaged_can_be_made_again(run):
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])):
        damage(next(run.glob("index_*")))
        with pytest.raises(ModelError, match="make it again: longtail index"):
            Index.load(run)
        build_artefact(run, search="hnsw")
        assert Index.load(run).predict(["red cat"], 1).labels[0, 0] >= 0


@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_a_pipe_among_the_files_is_refused(run):
    (run / "metrics.json").unlink()
    os.mkfifo(run / "metrics.json")
    with pytest.raises(ModelError, match="not a regular file"):
        Index.load(run)


@pytest.mark.parametrize("run", ["knn"], indirect=True)
def test_an_interrupted_query_leaves_nothing_behind(run, monkeypatch):
    monkeypatch.setattr("longtail.search.inverted.compiles", lambda: False)  # nothing interrupts compiled code
    index = Index.load(run)
    before = index.predict(["red cat", "old dog by night"], 5)
    for name in ("_largest", "entries_of"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"longtail.search.inverted.{name}", _interrupted)
            index.predict(["grey owl in the garden"], 5)
    after = index.predict(["red cat", "old dog by night"], 5)
    np.testing.assert_array_equal(before.labels, after.labels)
    np.testing.assert_array_equal(before.scores, after.scores)


def _interrupted(*_):
    raise KeyboardInterrupt
