"""Vocabularies as label files: names in any language, addresses and notations, other texts and what is broader."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from longtail.augment.gandalf import Gandalf
from longtail.data.formats import FORMATS, load, write
from longtail.errors import DataError
from longtail.pipeline import fit

pytest.importorskip("rdflib")

TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix : <http://ex.org/> .
:animals a skos:Concept ; skos:prefLabel "animals"@en , "eläimet"@fi ; skos:notation "590" ; skos:narrower :cats .
:cats a skos:Concept ; skos:prefLabel "cats"@en , "kissat"@fi ; skos:altLabel "felines"@en , "kisut"@fi , "pets"@en .
:dogs a skos:Concept ; skos:prefLabel "dogs"@en ; skos:broader :animals ; skos:altLabel "pets"@en .
:dogs skos:notation "599" .
:old a skos:Concept ; skos:prefLabel "gone"@en ; owl:deprecated true .
:scheme a skos:ConceptScheme ; skos:prefLabel "a scheme"@en .
"""
ROWS = "title,tags\ntwo felines,felines\nkissa,kissat\na dog,http://ex.org/dogs\nall of them,590|599\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "d"
    place.mkdir()
    (place / "items.csv").write_text(ROWS)
    (place / "vocabulary.ttl").write_text(TURTLE)
    return place


def test_points_name_concepts_in_many_ways(folder: Path) -> None:
    data = load(folder)
    labels = data.labels
    assert labels.texts is not None and labels.texts.tolist() == ["animals", "cats", "dogs"]
    assert labels.ids is not None and labels.ids[1] == "http://ex.org/cats"
    assert data.train.targets.toarray().tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]]
    assert labels.alternatives is not None and labels.alternatives.tolist() == ["felines", "pets", "pets"]
    assert labels.alternatives_of is not None and labels.alternatives_of.indices.tolist() == [1, 1, 2]
    assert labels.broader is not None and labels.broader.toarray().tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert fit("knn", data.train).predict(["some felines"], k=1)[0][0][1] == "cats"


def test_the_language_can_be_chosen(folder: Path) -> None:
    labels = load(folder, language="fi").labels
    assert labels.texts is not None and labels.texts.tolist() == ["eläimet", "kissat", "dogs"]  # dogs has no other
    assert labels.alternatives is not None and labels.alternatives.tolist() == ["kisut"]
    with pytest.raises(DataError, match=r"no preferred label in 'sv'; choose one of en, fi"):
        load(folder, language="sv")


def test_a_name_of_two_concepts_is_no_name(folder: Path) -> None:
    (folder / "items.csv").write_text("title,tags\nx,pets\n")
    with pytest.raises(DataError, match=r"label 'pets' is not in vocabulary\.ttl"):
        load(folder)


@pytest.mark.parametrize("name", [name for name, kind in FORMATS.items() if kind.writable])
def test_every_format_keeps_other_texts_and_what_is_broader(folder: Path, name: str) -> None:
    data = load(folder)
    write(data, folder.parent / name, name)
    again = load(folder.parent / name)
    assert again.fingerprint == data.fingerprint
    assert again.labels.broader is not None and again.labels.broader.nnz == 2


def test_other_texts_become_points_too(folder: Path) -> None:
    train = load(folder).train
    more = Gandalf(targets="self").augment(train)
    texts = more.need_texts("this").tolist()[len(train) :]
    assert texts == ["animals", "cats", "dogs", "felines", "pets", "pets"]
    assert more.targets[len(train) :].indices.tolist() == [0, 1, 2, 1, 1, 2]


def test_other_syntaxes_and_damage(folder: Path) -> None:
    import rdflib

    before = load(folder).fingerprint
    graph = rdflib.Graph().parse(data=TURTLE, format="turtle")
    (folder / "vocabulary.ttl").unlink()
    for name, syntax in (("v.nt", "nt"), ("v.rdf", "xml"), ("my-skos.xml", "xml"), ("v.ttl.gz", "turtle")):
        content = graph.serialize(format=syntax).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert load(folder).fingerprint == before, name
        (folder / name).unlink()
    (folder / "v.ttl").write_text(TURTLE[:300])
    with pytest.raises(DataError, match="not readable as RDF"):
        load(folder)
    (folder / "v.ttl").write_text("<http://a> <http://b> <http://c> .")
    with pytest.raises(DataError, match="no concept with a preferred label"):
        load(folder)
    (folder / "v.ttl").write_text(f"{TURTLE}\n<http://a> <http://www.w3.org/2004/02/skos/core#prefLabel> [] .")
    assert load(folder)  # a label that is no text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("label_alternatives.txt", "0\tx\n9\ty\n", "label 9 of 1 labels"),
        ("label_alternatives.txt", "0 x\n", "is no text of a label"),
        ("label_broader.txt", "0 5\n", "label 5 of 1 labels"),
        ("label_broader.txt", "0\n", "is no pair"),
    ],
)
def test_bad_files_beside_labels(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / "trn.jsonl").write_text('{"text": "a", "labels": [0]}')
    (tmp_path / "lbl.jsonl").write_text('{"text": "x"}')
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        load(tmp_path)


def test_addresses_in_a_cell_are_separated_by_blanks(folder: Path) -> None:
    (folder / "items.csv").unlink()
    (folder / "train.tsv").write_text(
        "two pets\t<http://ex.org/dogs> <http://ex.org/cats>\na cat\t<http://ex.org/cats>\n"
    )
    assert load(folder).train.targets.toarray().tolist() == [[0, 1, 1], [0, 1, 0]]
