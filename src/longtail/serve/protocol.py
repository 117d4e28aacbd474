"""MODEL FOLDER → INDEX: what the service asks of an index, and how it opens one.

The opener is named by a string ("module:attribute"), so that worker processes can import it for themselves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence, Set
from functools import reduce
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from numpy.typing import NDArray

from longtail.data.dataset import Labels
from longtail.types import TopK


class Index(Protocol):
    """Everything that the service needs of a model; all calls come from one thread."""

    @property
    def name(self) -> str:
        """What people call the model."""

    @property
    def labels(self) -> Labels:
        """All labels, those added later too."""

    @property
    def removed(self) -> Set[int]:
        """Labels that were taken away."""

    @property
    def frequencies(self) -> NDArray[Any]:
        """Training points of each label, (L,)."""

    @property
    def damage(self) -> Exception | None:
        """What is wrong with the files of the model, if that was found after it was opened."""

    def verify(self) -> None:
        """Compare every file with its checksum, or raise."""

    def predict(
        self,
        texts: Sequence[str],
        k: int = 5,
        *,
        threshold: float | None = None,
        allow: Sequence[int] | None = None,
        deny: Sequence[int] | None = None,
        probabilities: bool = False,
    ) -> TopK:
        """Find the k best labels of each text."""

    def explain(self, text: str, label: int) -> dict[str, Any]:
        """Tell why a text gets a label."""

    def describe(self) -> dict[str, Any]:
        """Tell recipe, sizes, data and metrics."""

    def label(self, label: int) -> dict[str, Any]:
        """Tell what is known of a label: frequency, bin, neighbours, examples."""

    def find(self, text: str, limit: int) -> list[int]:
        """Find labels whose text holds the words."""

    def add(self, texts: Sequence[str], ids: Sequence[str] | None = None) -> list[int]:
        """Add labels for good and return their numbers."""

    def remove(self, labels: Sequence[int]) -> None:
        """Take labels away for good."""

    def undo(self) -> None:
        """Take back the last change."""

    def refresh(self) -> bool:
        """Take over what another process changed; cheap when nothing did."""


Opener: TypeAlias = Callable[[Path], Index]


def opener(name: str) -> Opener:
    """Import an opener by its name.

    >>> opener("pathlib:Path.is_dir")(Path("."))
    True
    """
    module, _, attribute = name.partition(":")
    return cast(Opener, reduce(getattr, attribute.split("."), importlib.import_module(module)))
