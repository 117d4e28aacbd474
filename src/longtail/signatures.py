"""MODEL FOLDER + KEY → SIGNATURE: who answers for a model, where its checksums only say that it is whole.

signature.json holds an Ed25519 signature over two hashes: of what the answers depend on (the settings and the checksum
of every file but the figures and the card), and of the changes of labels so far, as the journal chains them. Figures
can thus be added without a new signature; a new index or a changed label needs one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.errors import DataError, MissingExtra, ModelError
from longtail.files import read_json, regular, write_json
from longtail.folder import answers_by, changing, labels_of, verify_files
from longtail.labels.journal import Journal
from longtail.whole import held, whole_file

FILE = "signature.json"
SIGNED = ("model", "labels")  # the hashes that a signature covers
READ = re.compile(r"\w+\.(safetensors|arrow|parquet)|(tokenizer|encoder|metrics)\.json", re.ASCII)  # by parts of models
UNREAD = re.compile(r"index_[0-9a-f]+\.safetensors")  # unless config.json lists it
LARGEST = 2**20  # bytes of a file of keys
KEY = re.compile(r"[A-Za-z0-9+/]{43}=")  # a public key as it is printed
PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def make_key(path: Path) -> Path:
    """Write a new private key, for its owner's eyes only, and beside it the public one, whose path is returned.

    A private key that is there already stays, and gets the public one that it lacks.
    """
    public = path.with_name(path.name + ".pub")
    ed25519, pem = _cryptography()
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.parent):
        if public.exists():
            raise DataError("exists already", file=public, remedy="a key is never replaced; choose another name")
        if not path.exists():
            made = ed25519.Ed25519PrivateKey.generate()
            with whole_file(path, mode=0o600) as partial:
                partial.write_bytes(made.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
        key = _private(path)  # also one whose command was killed before it wrote the public key
        with whole_file(public) as partial:
            partial.write_bytes(key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo))
    return public


def sign(folder: Path, path: Path) -> str:
    """Sign a model folder whose files are sound, with the changes of its labels so far; return the public key."""
    key = _private(path)
    with changing(folder) as config:
        verify_files(folder, config["files"])
        hashes = _hashes(folder, config)
        public = _printed(key.public_key())
        signature = base64.b64encode(key.sign(_message(hashes))).decode()
        write_json(folder / FILE, {**hashes, "key": public, "signature": signature})
    return public


def trusted_keys(trusted: Sequence[str | Path]) -> tuple[str, ...]:
    """Return public keys as they are printed: given so, or in files that hold one or several in PEM."""
    keys = [key for entry in trusted for key in ([entry] if KEY.fullmatch(str(entry)) else _public_keys(Path(entry)))]
    if not keys:
        raise DataError("no key is trusted", remedy="give a file of public keys, as `longtail keygen` writes it")
    return tuple(dict.fromkeys(map(str, keys)))


class Signature:
    """What trusted keys have signed of a model folder; anything else is a ModelError."""

    def __init__(self, folder: Path, trusted: Sequence[str | Path]) -> None:
        self.folder, self._keys = folder, trusted_keys(trusted)
        self._remedy = f"its owner signs it: longtail sign {folder} --key KEY"

    def check_model(self, config: Mapping[str, Any]) -> None:
        """Refuse settings and checksums that were not signed, and files that would be read without any."""
        if self._signed()["model"] != answers_by(config):
            raise ModelError(f"{self.folder}: changed since it was signed; {self._remedy}")
        for entry in sorted(self.folder.iterdir()):
            if READ.fullmatch(entry.name) and not UNREAD.fullmatch(entry.name) and entry.name not in config["files"]:
                raise ModelError(f"{entry}: the signature does not cover this file; remove it")

    def check_labels(self, state: str) -> None:
        """Refuse changes of labels that were not signed."""
        if self._signed()["labels"] != state:
            raise ModelError(f"{self.folder}: its labels were changed since it was signed; {self._remedy}")

    def _signed(self) -> dict[str, Any]:
        """Read what a trusted key has signed."""
        path = self.folder / FILE
        if not path.exists():
            raise ModelError(f"{self.folder}: not signed, and only signed models are trusted here; {self._remedy}")
        found = read_json(path, largest=LARGEST)
        key, hashes = found.get("key"), {name: found.get(name) for name in SIGNED}
        if key not in self._keys:
            told = f"by {key}, which" if isinstance(key, str) and KEY.fullmatch(key) else "by a key that"
            raise ModelError(f"{self.folder}: signed {told} is not trusted here; do not use this model")
        if not _is_signed(key, found.get("signature"), _message(hashes)):
            raise ModelError(f"{path}: not what this key has signed; do not use this model")
        return hashes


def stale(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a folder has a signature that no longer fits its files or its labels."""
    if not (folder / FILE).exists():
        return False
    found, hashes = read_json(folder / FILE, largest=LARGEST), _hashes(folder, config)
    return any(found.get(name) != value for name, value in hashes.items())


def _hashes(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Hash what a signature covers: what answers depend on, and the changes of labels so far."""
    journal = Journal(folder, labels_of(config), lambda: labels_of(config))
    journal.refresh()
    return {"model": answers_by(config), "labels": journal.state}


def _message(hashes: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed."""
    return b"longtail model 1\n" + json.dumps(hashes, sort_keys=True).encode()


def _is_signed(key: str, signature: object, message: bytes) -> bool:
    """Return whether a key has signed a message."""
    ed25519, _ = _cryptography()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  (an extra)

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        public.verify(base64.b64decode(str(signature), validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(path: Path) -> Any:
    """Read a private key."""
    ed25519, pem = _cryptography()
    return _loaded(path, lambda raw: pem.load_pem_private_key(raw, None), ed25519.Ed25519PrivateKey, "a private")


def _public_keys(path: Path) -> list[str]:
    """Read the public keys of a file."""
    ed25519, pem = _cryptography()
    found = PUBLIC.findall(_content(path)) or [b""]
    return [
        _printed(_loaded(path, pem.load_pem_public_key, ed25519.Ed25519PublicKey, "a public", one)) for one in found
    ]


def _loaded(path: Path, load: Any, kind: type, what: str, raw: bytes | None = None) -> Any:
    """Read a key; refuse what is none, and one of another kind."""
    wrong = DataError(
        f"not {what} key of Ed25519 in PEM, without a password", file=path, remedy="make one: longtail keygen KEY"
    )
    try:
        key = load(_content(path) if raw is None else raw)
    except Exception:  # also a password that is missing, and whatever damage does to OpenSSL
        raise wrong from None
    if not isinstance(key, kind):
        raise wrong
    return key


def _content(path: Path) -> bytes:
    """Read a small file."""
    if regular(path, links=True) > LARGEST:
        raise DataError("larger than any file of keys", file=path, remedy="make one: longtail keygen KEY")
    return path.read_bytes()


def _printed(key: Any) -> str:
    """Write the 32 bytes of a public key as text."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def _cryptography() -> tuple[Any, Any]:
    """Import signatures and the formats of keys; an extra brings them."""
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("cryptography", "sign") from None
    return ed25519, serialization
