"""SKOS VOCABULARY → LABEL TABLE: the concepts of a Turtle, N-Triples, N3 or RDF/XML file (extra `skos`).

A label is a concept: its text is the preferred label in one language, its raw id the address. Alternative labels of
that language are other texts of it. Points may name it by any of its labels in any language, by its notation or its
address.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data.formats.lines import clean, read_bytes
from longtail.data.formats.rows import LabelTable, Place
from longtail.data.formats.values import short
from longtail.data.problems import Problems
from longtail.errors import MissingExtra

SYNTAX = {".ttl": "turtle", ".n3": "n3", ".nt": "nt", ".rdf": "xml", ".xml": "xml"}
ByLanguage = dict[str, list[str]]


def read_skos(path: Path, language: str | None, problems: Problems) -> LabelTable:
    """Read the concepts of a vocabulary, in the order of their addresses."""
    graph = _parsed(path, problems)
    from rdflib import OWL, RDF, SKOS, Literal  # noqa: PLC0415  (an extra; it is there, or nothing was parsed)

    named, typed = set(graph.subjects(SKOS.prefLabel, None)), set(graph.subjects(RDF.type, SKOS.Concept))
    concepts = sorted((named & typed or named) - set(graph.subjects(OWL.deprecated, Literal(True))), key=str)
    preferred = [_labels(graph, concept, SKOS.prefLabel) for concept in concepts]
    others = [_labels(graph, concept, SKOS.altLabel) for concept in concepts]
    chosen = _language(preferred, language, path, problems)
    texts = [(entry.get(chosen) or entry[min(entry)])[0] for entry in preferred]
    places: dict[str, set[int]] = {}
    for place, concept in enumerate(concepts):
        names = [name for group in (*preferred[place].values(), *others[place].values()) for name in group]
        names += [clean(str(notation)) for notation in graph.objects(concept, SKOS.notation)]
        for name in (*names, f"<{concept}>"):
            places.setdefault(name, set()).add(place)
    numbers = {concept: place for place, concept in enumerate(concepts)}
    above = [*graph.subject_objects(SKOS.broader), *((two, one) for one, two in graph.subject_objects(SKOS.narrower))]
    pairs = {(numbers[one], numbers[two]) for one, two in above if one in numbers and two in numbers}
    problems.note(f"labels: {len(concepts):,} concepts of {path.name}" + (f" in {chosen}" if chosen else ""))
    entries = [(place, name) for place, entry in enumerate(others) for name in entry.get(chosen, [])]
    return LabelTable(
        Place(path, ()), len(concepts), texts, [str(concept) for concept in concepts],
        aliases={name: min(found) for name, found in places.items() if len(found) == 1},
        alternatives=[(place, name) for place, name in entries if name != texts[place]],
        broader=np.array(sorted(pairs), np.int64).reshape(-1, 2),
        numbered=False,
    )  # fmt: skip


def _parsed(path: Path, problems: Problems) -> Any:
    """Parse a file into a graph; nothing is fetched from elsewhere."""
    try:
        from rdflib import Graph  # noqa: PLC0415
    except ImportError:
        raise MissingExtra("rdflib", "skos") from None
    name = path.name.lower().removesuffix(".gz")
    syntax = next(kind for ending, kind in SYNTAX.items() if name.endswith(ending))
    content = read_bytes(path, problems)
    try:
        return Graph().parse(data=content, format=syntax)
    except Exception as reason:  # each syntax has its own exceptions, XML some more
        found = f"not readable as RDF ({short(str(reason))})"
        raise problems.fatal("damaged RDF", found, file=path, remedy="write it again as Turtle (.ttl)") from None


def _labels(graph: Any, concept: Any, kind: Any) -> ByLanguage:
    """Return the labels of one kind of a concept by language, in order."""
    found: ByLanguage = {}
    for literal in sorted(graph.objects(concept, kind), key=str):
        language = literal.language if hasattr(literal, "language") else None  # an address has none
        if text := clean(str(literal)):
            found.setdefault(language or "", []).append(text)
    return found


def _language(preferred: list[ByLanguage], language: str | None, path: Path, problems: Problems) -> str:
    """Return the language that is asked for, else the one that most concepts have."""
    spoken = Counter(tag for entry in preferred for tag in entry)
    if not spoken or not all(preferred):
        found = "no concept with a preferred label" if not spoken else "a concept whose preferred label is empty"
        raise problems.fatal("no labels", found, file=path, remedy="give every concept a skos:prefLabel")
    if language is not None and language not in spoken:
        remedy = f"choose one of {', '.join(sorted(filter(None, spoken))) or 'none: its labels have no language'}"
        raise problems.fatal("no labels", f"no preferred label in {language!r}", file=path, remedy=remedy)
    return min(spoken, key=lambda tag: (-spoken[tag], tag)) if language is None else language
