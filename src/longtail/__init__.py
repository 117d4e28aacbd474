"""longtail: extreme multi-label text classification for short texts and long tails.

TEXT + LABELS → data → labels → augment → training → scorers → model → metrics → report

import longtail as lt
data = lt.load("folder")  # or lt.Dataset.from_frame(frame, text="title", labels="tags")
model = lt.fit("knn", data)
top = model.predict(["position of an element"], k=5)
print(lt.evaluate(model, data))
model.save("runs/first")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.data.dataset import Dataset, Split, from_rows
    from longtail.data.formats import load, write
    from longtail.errors import DataError, LongtailError, ModelError, RecipeError, ResourceError
    from longtail.estimator import LongtailClassifier
    from longtail.evaluation import Evaluation
    from longtail.index import Index
    from longtail.model import Model
    from longtail.pipeline import compare, evaluate, fit
    from longtail.recipe import Recipe, find_recipe
    from longtail.types import TopK

_PLACES = {
    "longtail.data.dataset": ("Dataset", "Split", "from_rows"),
    "longtail.data.formats": ("load", "write"),
    "longtail.errors": ("DataError", "LongtailError", "ModelError", "RecipeError", "ResourceError"),
    "longtail.estimator": ("LongtailClassifier",),
    "longtail.evaluation": ("Evaluation",),
    "longtail.index": ("Index",),
    "longtail.model": ("Model",),
    "longtail.pipeline": ("compare", "evaluate", "fit"),
    "longtail.recipe": ("Recipe", "find_recipe"),
    "longtail.types": ("TopK",),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "DataError", "Dataset", "Evaluation", "Index", "LongtailClassifier", "LongtailError", "Model", "ModelError",
    "Recipe", "RecipeError", "ResourceError", "Split", "TopK", "compare", "evaluate", "find_recipe", "fit",
    "from_rows", "load", "write",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import longtail` is quick."""
    if name not in _WHERE:
        raise AttributeError(f"module 'longtail' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
