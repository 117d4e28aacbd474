"""TEXT → WORD IDS IN ORDER, for encoders that read words one after the other.

Texts are cleaned as [InceptionXML] cleans them, with one departure: letters of all alphabets are kept, not only A to Z.
Id 0 is padding and id 1 stands for every word that is not in the vocabulary.

References: [InceptionXML]; methods §4.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.unspaced import LETTERS, MARKS, RUN, grams
from longtail.errors import ModelError
from longtail.files import read_json
from longtail.machine import need
from longtail.types import Texts, rows_of
from longtail.whole import whole_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING, UNKNOWN = "[pad]", "[unk]"  # no text can hold them: cleaning takes the brackets away
FILE = "tokenizer.json"
LARGEST = 2**30  # bytes of a tokenizer.json, some twenty million words
CHUNK = 16_384  # texts that are cleaned together: one substitution over all of them is quicker than one for each

STRANGE = re.compile(
    rf"[^\w.'`\n{MARKS}{LETTERS}]"
)  # a letter of any alphabet stays: data in Finnish would lose ä and ö
FULL_STOP = re.compile(r"(?<=[^\W\d_])\.")
AFTER_DIGITS = re.compile(r"(?<=\d)(?=[^\W\d_])")
CONTRACTION = re.compile(r"(?='(?:ve|re|d|ll)\b)")


@dataclass(frozen=True, eq=False)
class Sequences:
    """A vocabulary whose words have numbers.

    >>> sequences = Sequences.fit(["red cat", "The red dog"], ["cat"])
    >>> sequences.vocabulary.tolist()
    ['[pad]', '[unk]', 'cat', 'red', 'dog', 'the']
    >>> ids, cut = sequences.ids(["a red cat", "dogs and cat", "", "cat dog cat dog"], 3)
    >>> ids.tolist(), cut
    ([[3, 2, 0], [1, 2, 0], [0, 0, 0], [2, 4, 2]], 1)
    """

    vocabulary: Texts  # (V,) padding, unknown, then the most common first
    credits: ClassVar[str] = ""  # it is made of the training data

    def __len__(self) -> int:
        return len(self.vocabulary)

    @classmethod
    def fit(cls, *collections: Iterable[str], most: int | None = None) -> Sequences:
        """Count the words of all collections and keep the `most` common ones; of equals the first by alphabet."""
        counts: Counter[str] = Counter()
        for line in cleaned(chain.from_iterable(collections)):
            counts.update(line.split())
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(Texts([PADDING, UNKNOWN, *words[:most]]))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The Rust tokenizer of this vocabulary; it takes cleaned text."""
        need("tokenizers", "train")
        from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)
        from tokenizers.models import WordLevel  # noqa: PLC0415
        from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415

        places = {word: place for place, word in enumerate(self.vocabulary)}
        tokenizer = Tokenizer(WordLevel(places, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return tokenizer

    def ids(self, texts: Iterable[str], length: int) -> tuple[NDArray[np.int32], int]:
        """Give words their ids, (N, T), filled up with 0 on the right, and count the texts that were cut."""
        blocks, cut, lines = [np.zeros((0, length), np.int32)], 0, cleaned(texts)
        while block := list(islice(lines, CHUNK)):
            found = [encoding.ids[: length + 1] for encoding in self.tokenizer.encode_batch_fast(block)]
            cut += sum(len(own) > length for own in found)
            found = [own[:length] for own in found]
            filled = np.arange(length) < np.fromiter(map(len, found), np.int64, len(found))[:, None]
            ids = np.zeros((len(found), length), np.int32)
            ids[filled] = np.fromiter(chain.from_iterable(found), np.int32)
            blocks.append(ids)
        return np.concatenate(blocks), cut

    def bags(self, ids: NDArray[np.int32]) -> sp.csr_array:
        """Count the known words of each row of ids (N, T): (N, V); padding and unknown words are left out."""
        bags = rows_of(np.where(ids > 1, ids, -1), np.ones(ids.shape), len(self))
        bags.sum_duplicates()
        return bags

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, whole or not at all."""
        with whole_file(folder / FILE) as partial:
            partial.write_text(self.tokenizer.to_str(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Sequences:
        """Read what `save` wrote: the vocabulary alone, so that no pattern or step of a strange file ever runs."""
        path = folder / FILE
        model = read_json(path, largest=LARGEST).get("model")
        places = model.get("vocab") if isinstance(model, dict) and model.get("type") == "WordLevel" else None
        if not isinstance(places, dict) or not all(type(place) is int for place in places.values()):
            raise ModelError(f"{path}: holds no vocabulary of whole words; write the model folder again")
        words = sorted(places, key=lambda word: int(places[word]))
        if [places[word] for word in words] != list(range(len(words))) or words[:2] != [PADDING, UNKNOWN]:
            raise ModelError(
                f"{path}: damaged (the ids do not count from {PADDING} = 0 and {UNKNOWN} = 1 without gaps); "
                "write the model folder again"
            )
        try:
            return cls(Texts(words))
        except UnicodeEncodeError as reason:
            raise ModelError(f"{path}: damaged ({reason}); write the model folder again") from None


def cleaned(texts: Iterable[str]) -> Iterator[str]:
    """Clean each text to words between spaces; where nothing would be left its raw words stay.

    Stop words go before the text is lower-cased, so that a capital keeps them: "The Who" stays.

    >>> list(cleaned(["The name of_the 32GB disk, e.g. Bob's Äijä", "who is it"]))
    ['the name 32 gb disk eg bob äijä', 'who is it']
    """
    stop, source = stop_words(), iter(texts)
    while block := list(islice(source, CHUNK)):
        words = [unicodedata.normalize("NFC", text).replace("_", " ").split() for text in block]
        joined = "\n".join([" ".join([word for word in line if word not in stop]) for line in words])
        joined = STRANGE.sub(" ", joined)
        joined = joined if joined.isascii() else RUN.sub(lambda found: f" {' '.join(grams(found[0]))} ", joined)
        joined = FULL_STOP.sub("", joined)
        joined = AFTER_DIGITS.sub(" ", joined)
        joined = joined.replace("'s ", " ")
        joined = CONTRACTION.sub(" ", joined)
        for text, line in zip(block, joined.lower().split("\n"), strict=True):
            yield " ".join(line.split()) or _raw(text)


def _raw(text: str) -> str:
    """Keep the words of a text as they are; half a surrogate pair becomes a question mark."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


@cache
def stop_words() -> frozenset[str]:
    """Return the English function words that carry no meaning of their own."""
    return frozenset(resources.files("longtail.data").joinpath("stopwords.txt").read_text("utf-8").split())
