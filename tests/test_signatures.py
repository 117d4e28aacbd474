"""A signature covers what answers depend on; unsigned, unknown and changed folders are refused where keys are given."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import stat

import pytest
from small import board, short
from test_cli import run as longtail

import longtail as lt
from longtail.artefact import build_artefact
from longtail.doctor import examine
from longtail.errors import DataError, MissingExtra, ModelError
from longtail.folder import keep_evaluation, read_config, write_config
from longtail.index import Index
from longtail.labels.journal import FILE as JOURNAL
from longtail.model import Model
from longtail.serve.gauges import Gauges
from longtail.serve.registry import Registry, _stamp
from longtail.signatures import FILE, make_key, sign, stale, trusted_keys
from longtail.whole import check_target

pytest.importorskip("cryptography")
FIGURES = {"P@1": 50.0, "points": 2, "bins": []}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("signed") / "run"
    lt.fit(short("frugal"), board(80)).save(path)
    return path


@pytest.fixture
def run(good, tmp_path):
    return shutil.copytree(good, tmp_path / "run")


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "own"
    make_key(path)
    return path


@pytest.fixture(scope="module")
def public(key):
    return key.with_name("own.pub")


def refused(run, public, words):
    with pytest.raises(ModelError, match=words) as reason:
        Index.load(run, trusted=[public])
    assert "\n" not in str(reason.value)


def test_a_signed_model_opens_and_an_unsigned_one_is_refused(run, key, public, tmp_path):
    refused(run, public, "not signed")
    with pytest.raises(ModelError, match="not signed"):
        Model.load(run, trusted=[public])
    printed = sign(run, key)
    assert Index.load(run, trusted=[public]).predict(["word3"], k=1).labels.shape == (1, 1)
    assert Model.load(run, trusted=[printed]).points  # a key as it is printed
    other = make_key(tmp_path / "other")
    refused(run, other, "not trusted")
    both = tmp_path / "both.pub"
    both.write_bytes(other.read_bytes() + public.read_bytes())
    assert Index.load(run, trusted=[str(both)]).labels
    assert check_target(run, force=True) is None  # `train --force` knows the file


def test_keys_are_private_and_never_replaced(tmp_path):
    public = make_key(tmp_path / "keys" / "mine")
    assert stat.S_IMODE((tmp_path / "keys" / "mine").stat().st_mode) == 0o600
    before = public.read_bytes()
    with pytest.raises(DataError, match="never replaced"):
        make_key(tmp_path / "keys" / "mine")
    assert public.read_bytes() == before
    public.unlink()  # as a kill between the two would leave it
    secret = (tmp_path / "keys" / "mine").read_bytes()
    assert make_key(tmp_path / "keys" / "mine").read_bytes() == before
    assert (tmp_path / "keys" / "mine").read_bytes() == secret


def test_what_is_no_key_is_refused(run, key, public, tmp_path):
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    locked = ed25519.Ed25519PrivateKey.generate()
    own = pem.PrivateFormat.PKCS8
    wrong = {
        "locked": locked.private_bytes(pem.Encoding.PEM, own, pem.BestAvailableEncryption(b"word")),
        "another": x25519.X25519PrivateKey.generate().private_bytes(pem.Encoding.PEM, own, pem.NoEncryption()),
        "none": b"",
        "text": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "large": b"x" * 2_000_000,
    }
    for kind, file in (("PRIVATE", key), ("PUBLIC", public)):  # of an algorithm that nobody knows
        der = base64.b64decode("".join(file.read_text().splitlines()[1:-1])).replace(b"\x2b\x65\x70", b"\x2b\x65\x56")
        text = f"-----BEGIN {kind} KEY-----\n{base64.b64encode(der).decode()}\n-----END {kind} KEY-----\n"
        wrong[f"unknown {kind}"] = text.encode()
    for name, content in wrong.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            sign(run, tmp_path / name)
        with pytest.raises(DataError, match=name):
            trusted_keys([tmp_path / name])
    with pytest.raises(DataError, match="private key"):
        sign(run, public)
    with pytest.raises(DataError, match="public key"):
        trusted_keys([key])
    with pytest.raises(DataError, match="no key is trusted"):  # an empty list never means that all are
        Index.load(run, trusted=[])
    assert not (run / FILE).exists()


def changed(run, name, value):
    """Change a value of signature.json."""
    found = json.loads((run / FILE).read_text())
    (run / FILE).write_text(json.dumps({**found, name: value}))


def test_what_was_signed_cannot_be_changed(run, key, public, good):
    sign(run, key)
    signed = (run / FILE).read_bytes()
    config = read_config(run)
    write_config(run, {**config, "licence": "mine"})  # a seal that fits
    refused(run, public, "changed since it was signed")
    changed(run, "model", "0")
    refused(run, public, "not what this key has signed")
    write_config(run, config)
    (run / FILE).write_bytes(signed)
    weights = run / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    refused(run, public, "changed since it was written")
    shutil.copyfile(good / weights.name, weights)
    for name, value in [
        ("signature", base64.b64encode(bytes(64)).decode()), ("signature", "!"), ("signature", None), ("labels", "x"),
        ("key", None), ("key", ["a"]), ("key", base64.b64encode(bytes(32)).decode()),
    ]:  # fmt: skip
        changed(run, name, value)
        refused(run, public, "not what this key has signed|not trusted")
        (run / FILE).write_bytes(signed)
    assert Index.load(run, trusted=[public])


def test_a_file_that_no_checksum_covers_is_refused(run, key, public):
    sign(run, key)
    (run / "notes.txt").write_text("mine")
    assert Index.load(run, trusted=[public])  # nothing reads it
    shutil.copyfile(run / "weights.safetensors", run / "thresholds.safetensors")
    refused(run, public, "does not cover this file")


def test_figures_need_no_new_signature_but_an_index_does(run, key, public):
    sign(run, key)
    keep_evaluation(run, Model.load(run).facts(), {**FIGURES, "dataset": "d", "split": "test"})
    assert Index.load(run, trusted=[public]).model.metrics["P@1"] == 50.0
    build_artefact(run, search="exact")
    refused(run, public, "changed since it was signed")
    assert [finding.wrong for finding in examine(run)] == [
        f"{run.resolve() / FILE}: signed before the model or its labels were changed"
    ]
    sign(run, key)
    assert Index.load(run, trusted=[public]).served is not None and examine(run) == []


def test_changes_of_labels_need_a_new_signature(run, key, public, caplog):
    sign(run, key)
    serving = Index.load(run, trusted=[public])
    for change in (lambda: serving.add(["blue parrot"]), lambda: serving.remove([1]), serving.undo):
        with pytest.raises(DataError, match="as it was signed"):
            change()
    count = len(serving.labels)
    Index.load(run).add(["blue parrot"])
    refused(run, public, "labels were changed since it was signed")
    registry = Registry([run], lambda _: serving, Gauges())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            registry.refresh()  # the service goes on with what was signed, and says so once
    assert len(serving.labels) == count and len(caplog.records) == 1
    stamp = _stamp(run)
    sign(run, key)
    assert _stamp(run) != stamp  # a folder that was refused is tried again
    registry.refresh()
    assert len(serving.labels) == count + 1
    (run / JOURNAL).unlink()  # what was signed was taken away
    refused(run, public, "labels were changed since it was signed")
    assert stale(run, read_config(run))


def test_the_command_line(run, tmp_path):
    key, texts = tmp_path / "key", tmp_path / "texts.txt"
    texts.write_text("word3\n")
    assert longtail("keygen", key).returncode == 0
    trust = ["--trusted-keys", f"{key}.pub"]
    bad = longtail("predict", run, texts, *trust)
    assert bad.returncode == 3 and bad.stderr.count("\n") == 1 and "not signed" in bad.stderr and not bad.stdout
    assert "signed by" in longtail("sign", run, "--key", key).stderr
    assert longtail("predict", run, texts, *trust).returncode == 0
    assert longtail("explain", run, "word3", *trust).returncode == 0
    assert "sign it again" in longtail("labels", "add", run, texts).stderr
    assert longtail("explain", run, "word3", *trust).returncode == 3
    bad = longtail("serve", run, "--port", "0", "--trusted-keys", key)
    assert bad.returncode == 3 and "not a public key" in bad.stderr and bad.stderr.count("\n") == 1


def test_the_extra_is_named_where_it_is_missing(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(MissingExtra, match=r"longtail\[sign\]"):
        make_key(tmp_path / "key")
    with pytest.raises(MissingExtra, match=r"longtail\[sign\]"):
        Index.load(run, trusted=[tmp_path / "key.pub"])
