"""MODEL FOLDER → INDEX: the interface of an index that the service uses, and how it opens one.

The opener is named by a string ("module:attribute"), so that each worker process can import it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence, Set
from functools import reduce
from typing import Any, Protocol, TypeAlias, cast

from numpy.typing import NDArray

from longtail.data.dataset import Labels
from longtail.stores.shards import PartQuery
from longtail.types import Floats, Ints, TopK


class Index(Protocol):
    """What the service needs of a model; all calls come from one thread."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def labels(self) -> Labels:
        """All labels, including added ones."""

    @property
    def removed(self) -> Set[int]:
        """Labels that were removed."""

    @property
    def frequencies(self) -> NDArray[Any]:
        """Training points of each label, (L,)."""

    @property
    def damage(self) -> Exception | None:
        """The error in the files of the model, if one was found after it was opened."""

    def verify(self) -> None:
        """Compare every file with its checksum; raise if one differs."""

    def predict(
        self,
        texts: Sequence[str],
        k: int = 5,
        *,
        threshold: float | str | None = None,
        allow: Sequence[int] | None = None,
        deny: Sequence[int] | None = None,
        probabilities: bool = False,
    ) -> TopK:
        """Find the k best labels of each text."""

    @property
    def hash(self) -> str:
        """What the model is called in every store of label vectors."""

    def nearest(self, asked: PartQuery) -> tuple[Ints, Floats]:
        """Find the best labels of vectors in a part of the trained labels, for a process that shares them."""

    def explain(self, text: str, label: int) -> dict[str, Any]:
        """Explain why a text gets a label."""

    def describe(self) -> dict[str, Any]:
        """Return recipe, sizes, data and metrics."""

    def label(self, label: int) -> dict[str, Any]:
        """Describe a label: frequency, bin, neighbours, examples."""

    def find(self, text: str, limit: int) -> list[int]:
        """Find labels whose text contains the words."""

    def add(self, texts: Sequence[str], ids: Sequence[str] | None = None) -> list[int]:
        """Add labels permanently and return their ids."""

    def remove(self, labels: Sequence[int]) -> None:
        """Remove labels permanently."""

    def undo(self) -> None:
        """Undo the last change."""

    def refresh(self) -> bool:
        """Pick up what another process changed; cheap if nothing did."""


Opener: TypeAlias = Callable[..., Index]  # of a folder; and of `trusted` keys, where there are any


def opener(name: str) -> Opener:
    """Import an opener by its name.

    >>> from pathlib import Path
    >>> opener("pathlib:Path.is_dir")(Path("."))
    True
    """
    module, _, attribute = name.partition(":")
    return cast(Opener, reduce(getattr, attribute.split("."), importlib.import_module(module)))
