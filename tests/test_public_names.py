"""The public surface changes only on purpose."""

from __future__ import annotations

import subprocess
import sys

import longtail

NAMES = {
    "DataError", "Dataset", "Evaluation", "Index", "LongtailClassifier", "LongtailError", "Model", "ModelError",
    "Recipe", "RecipeError", "ResourceError", "Split", "TopK", "compare", "evaluate", "find_recipe", "fit",
    "from_rows", "load", "write",
}  # fmt: skip


def test_exactly_these_names_are_public():
    assert set(longtail.__all__) == NAMES
    assert set(dir(longtail)) == NAMES
    assert len(NAMES) <= 20
    for name in NAMES:
        assert getattr(longtail, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    try:
        longtail.fitt  # noqa: B018
    except AttributeError as error:
        assert "fitt" in str(error)
    else:
        raise AssertionError


def test_importing_longtail_imports_nothing_heavy():
    code = "import sys, longtail; print(sorted({'numpy', 'scipy', 'pyarrow', 'torch', 'sklearn'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
