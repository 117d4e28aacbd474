"""TEXT WITHOUT SPACES → CHARACTER N-GRAMS: Chinese, Japanese, Thai, Lao, Khmer and Burmese have no marks between words.

A run of such letters is cut into all pairs of neighbours; ideographs, which mean something alone, count one by one too.
Marks that belong to a letter (vowels of Thai or of Indian scripts) stay with the word that they are in.
"""

from __future__ import annotations

import re
import unicodedata

IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f" + IDEOGRAPHS
MARKS = "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"  # beside letters
RUN = re.compile(f"[{LETTERS}]+")
ALONE = re.compile(f"[{IDEOGRAPHS}]")
ATTACHED = "".join(  # marks beside such letters
    mark for mark in map(chr, range(0x0E00, 0x3100)) if RUN.match(mark) and unicodedata.category(mark)[0] == "M"
)
SPACED = f"(?:[^\\W{LETTERS}]|[{MARKS}])+"
WORD = re.compile(f"[{LETTERS}]+|{SPACED}")
# What can be shown of a text, piece by piece: words, or letters with their marks (serve/page/highlight.js cuts alike)
PIECE = re.compile(f"[{LETTERS}][{ATTACHED}]*|{SPACED}")


def words_of(text: str) -> list[str]:
    """Cut a text into words, and runs of letters without spaces into n-grams.

    >>> words_of("黒猫 and สวัสดี")
    ['黒', '猫', '黒猫', 'and', 'สว', 'วั', 'ัส', 'สด', 'ดี']
    """
    return [piece for word in WORD.findall(text) for piece in (grams(word) if RUN.match(word) else [word])]


def grams(run: str) -> list[str]:
    """Cut a run of letters into ideographs and pairs of neighbours.

    >>> grams("カメラ"), grams("犬")
    (['カメ', 'メラ'], ['犬'])
    """
    if len(run) == 1:
        return [run]
    return ALONE.findall(run) + [run[place : place + 2] for place in range(len(run) - 1)]
