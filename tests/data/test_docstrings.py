import pytest

from longtail.data.docstrings import plain, see_also, summary, words

HEAD = "Do it.\n\n    See Also\n    --------\n"


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("    mean : The mean.\n", ["mean"]),
        ("    mean: The mean.\n    max : Max.\n", ["mean", "max"]),
        ("    mean, numpy.max : Both.\n", ["mean", "numpy.max"]),
        ("    mean, max,\n    min\n", ["mean", "max", "min"]),
        ("    :func:`mean` : The mean of `words`.\n", ["mean"]),
        ("    :meth:`~pkg.mod.Class.meth` : Text.\n", ["pkg.mod.Class.meth"]),
        ("    :py:class:`a.B`, :func:`c`\n", ["a.B", "c"]),
        ("    `.Axes.plot`, ``np.sum``\n", [".Axes.plot", "np.sum"]),
        ("    mean : Over\n        several `lines`, of text\n    max\n        On the next line.\n", ["mean", "max"]),
        ("    mean\n\n    max\n", ["mean", "max"]),
        ("    * mean : starred\n    - max() : dashed\n", ["mean", "max"]),
        ("    For more see :func:`mean` and `text <pkg.max>`.\n", ["mean", "pkg.max"]),
        ("    This sentence names nothing.\n", []),
        ("    mean : one\n    mean : twice\n", ["mean"]),
        ("        mean : indented\n        max : too\n", ["mean", "max"]),
        ("    mean : last\n\n    Notes\n    -----\n    max : not this\n", ["mean"]),
        ("    .. versionadded:: 1.0\n    mean : after a directive\n", ["mean"]),
    ],
)
def test_sections(section: str, names: list[str]) -> None:
    assert see_also(HEAD + section) == tuple(names)


@pytest.mark.parametrize(
    ("doc", "names"),
    [
        ("Do.\n\n    .. seealso:: `.Axes.bar`, `.Axes.barh`\n\n    More `text`.", [".Axes.bar", ".Axes.barh"]),
        (
            "Do.\n\n    .. seealso::\n\n        :func:`a.b`\n            Described by `x`.\n        c : Text\n",
            ["a.b", "c"],
        ),
        ("Do.\n\n    .. seealso::\n        `a`\n    outside : text\n", ["a"]),
        ("Do.\n\nSee also\n--------\na : A\n\n.. seealso:: `b`", ["b", "a"]),
        ("See Also", []),
        ("", []),
    ],
)
def test_notes(doc: str, names: list[str]) -> None:
    assert sorted(see_also(doc)) == sorted(names)


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        ("Add numbers.", "Add numbers."),
        ("\n    Add numbers\n    in two lines.\n\n    More.", "Add numbers in two lines."),
        ("First. Second.", "First."),
        ("Use e.g. Arrays of J. Smith first. Then.", "Use e.g. Arrays of J. Smith first."),
        ("f(x, y) -> int\n\nAdd.", "Add."),
        ("f(x,\n  y)\n\nAdd.", "Add."),
        ("dtype(x)\n--\n\ndtype(x, y)\n\nMake a type.", "Make a type."),
        ("f(x)\nAdd.", "Add."),
        (".. deprecated:: 1.0\n\n    Use `other`.\n\nAdd.", "Add."),
        ("This docstring was copied from numpy.add.\n\nSome inconsistencies with the Dask version.\n\nAdd.", "Add."),
        (">>> 1 + 1\n2", ""),
        ("Parameters\n----------\nx : int", ""),
        ("f(x)", ""),
        ("", ""),
    ],
)
def test_summaries(doc: str, text: str) -> None:
    assert summary(doc) == text


def test_long_summaries_end_at_a_word() -> None:
    text = summary("word " * 200)
    assert len(text) <= 240
    assert text.endswith("word …")


def test_markup_is_stripped() -> None:
    assert plain("A ``b``, :class:`~x.Y`, :func:`z.w`, `t <u>`_ and *e*") == "A b, Y, z.w, t and e"
    assert plain(r"*args, **kwargs and a \* b") == "*args, **kwargs and a * b"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("read_csv", "read csv"),
        ("DataFrameGroupBy", "Data Frame Group By"),
        ("HTTPServer", "HTTP Server"),
        ("sklearn.svm.LinearSVC", "sklearn svm Linear SVC"),
        ("sklearn.cluster.KMeans", "sklearn cluster K Means"),
        ("Line2D.set_lw", "Line2D set lw"),
        ("matplotlib.axes.Axes.plot", "matplotlib Axes plot"),
        ("numpy.log1p", "numpy log1p"),
        ("x__y_", "x y"),
    ],
)
def test_names_become_words(name: str, text: str) -> None:
    assert words(name) == text
