"""DOCSTRING → WORDS, SUMMARY AND LINKS: what a reader of Python documentation sees, as plain text.

Both spellings of cross references are read: the numpydoc section "See Also" and the reStructuredText `.. seealso::`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

LONGEST_SUMMARY = 240  # characters

_MARKED = r"(?::[A-Za-z][\w:+-]*:)?`{1,2}[^`]+`{1,2}_{0,2}"  # :func:`name`, `name`, ``name``, `name`_
_REFERENCE = rf"(?:{_MARKED}|[~.]?[A-Za-z_][\w.]*(?:\(\))?)"
_ENTRY = re.compile(rf"(?:[-*]\s+)?({_REFERENCE}(?:\s*,\s*{_REFERENCE})*)\s*,?\s*(?::(?:\s.*)?|[-–—]+\s.*|\.)?")
_UNDERLINE = r"[ \t]*([-=~])\1{2,}[ \t]*$"
_SECTION = re.compile(r"^[ \t]*see also:?[ \t]*\n" + _UNDERLINE, re.IGNORECASE | re.MULTILINE)
_HEADING = re.compile(r"^[ \t]*\S[^\n]*\n" + _UNDERLINE, re.MULTILINE)
_ADMONITION = re.compile(r"^([ \t]*)\.\. seealso::[ \t]*(.*)\n((?:\1[ \t]+.*\n|[ \t]*\n)*)", re.MULTILINE)
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?", re.DOTALL)
_SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)(?<![A-Z])\.\s+(?=[A-Z(])")
_BOILERPLATE = re.compile(
    r"\s*(>>> |This docstring was copied from |Some inconsistencies with the )"
)  # also dask's notes


def words(name: str) -> str:
    """Split an identifier in words; of a word and its repetition the second stays.

    >>> words("pandas.api.typing.DataFrameGroupBy.rolling")
    'pandas api typing Data Frame Group By rolling'
    >>> words("sklearn.linear_model.RidgeCV"), words("numpy.log1p"), words("matplotlib.lines.Line2D.set_data")
    ('sklearn linear model Ridge CV', 'numpy log1p', 'matplotlib lines Line2D set data')
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])|[._]+", " ", name).split()
    following = [*spaced[1:], ""]
    return " ".join(word for word, after in zip(spaced, following, strict=True) if word.lower() != after.lower())


def summary(doc: str) -> str:
    r"""Return the first sentence of a docstring without signature and markup; "" where there is none.

    >>> summary("add(x1, x2, /)\n\nAdd ``x1`` and the :class:`~numpy.ndarray` `x2`. Element-wise.\n\nIt is fast.")
    'Add x1 and the ndarray x2.'
    """
    directive = False
    for paragraph in re.split(r"\n[ \t]*\n", inspect.cleandoc(doc)):
        lines = paragraph.strip("\n").splitlines()
        directive = lines[:1] != [] and (lines[0].startswith("..") or (directive and lines[0][:1].isspace()))
        if directive or _BOILERPLATE.match(paragraph):
            continue
        if _HEADING.match("\n".join(lines)):
            return ""
        while lines and (_SIGNATURE.fullmatch(lines[0]) or lines[0] == "--"):  # compiled functions begin with both
            lines = lines[1:]
        if lines and not _SIGNATURE.fullmatch("\n".join(lines)):
            text = plain(" ".join(line.strip() for line in lines))
            end = _SENTENCE.search(text)
            return textwrap.shorten(text[: end.start() + 1] if end else text, LONGEST_SUMMARY, placeholder=" …")
    return ""


def plain(text: str) -> str:
    """Strip reStructuredText markup.

    >>> plain("See :func:`~numpy.add`, `a <b>`_, ``c``, `.Axes.plot`, **not** *args and |Quantity|")
    'See add, a, c, Axes.plot, not *args and Quantity'
    """
    text = re.sub(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}", r"`\1`", text)
    text = re.sub(r"(?<!\w):[A-Za-z][\w:+-]*:(?=`)", "", text)
    text = re.sub(r"`~\.?(?:\w+\.)*(\w+)`", r"\1", text)
    text = re.sub(r"`{1,2}[.!]?([^`]*)`{1,2}_{0,2}", r"\1", text)
    text = re.sub(r"(?<!\w)(\*{1,2})(\w(?:[^*]*\w)?)\1(?!\w)", r"\2", text)
    text = re.sub(r"(?<![\w|])\|(\w[\w .]*)\|(?![\w|])", r"\1", text)
    return re.sub(r"\\(?=\W)", "", text).strip()


def see_also(doc: str) -> tuple[str, ...]:
    r"""List the names in the "See Also" sections and `seealso` notes of a docstring, each once.

    >>> see_also("Sum.\n\nSee Also\n--------\nmean, :func:`np.prod` : Others.\n    In `words`.\n\nNotes\n-----\nmax")
    ('mean', 'np.prod')
    """
    doc = inspect.cleandoc(doc) + "\n"
    blocks = [f"{first}\n{textwrap.dedent(rest)}" for _, first, rest in _ADMONITION.findall(doc)]
    for section in _SECTION.finditer(doc):
        following = _HEADING.search(doc, section.end())
        blocks.append(textwrap.dedent(doc[section.end() : following.start() if following else len(doc)]))
    names = (name for block in blocks for line in block.splitlines() for name in _references(line))
    return tuple(dict.fromkeys(name for name in names if name))


def _references(line: str) -> Iterator[str]:
    """Yield the names of one line: those before the colon of an entry, or the marked ones in a sentence."""
    if line[:1].isspace() or line.startswith(".."):
        return  # a description or a directive
    entry = _ENTRY.fullmatch(line.strip())
    for reference in re.findall(_REFERENCE if entry else _MARKED, entry[1] if entry else line):
        name = re.sub(r"^:[\w:+-]+:(?=`)", "", reference).rstrip("_") if "`" in reference else reference
        name = re.sub(r"^.*<(.+)>$", r"\1", name.strip("`")).lstrip("~!").removesuffix("()")
        yield name.rstrip(".")
