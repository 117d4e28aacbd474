"""The flow is the tree: a module imports only what stands above it."""

from __future__ import annotations

import ast

import pytest
from conftest import ROOT

SOURCE = ROOT / "src" / "longtail"
ORDER = [
    "errors", "types", "machine", "files", "recipe", "data", "labels", "augment", "encoders", "shortlists",
    "classifiers", "losses", "probabilities", "model", "training", "artefact", "additions", "predictions",
    "explanations", "index", "metrics", "comparison", "report", "page", "recipes", "pipeline", "estimator", "bench",
    "serve", "cli",
]  # fmt: skip
INSIDE = {
    "data": [
        "problems",
        "dataset",
        "tokens",
        "sequences",
        "vectors",
        "docstrings",
        "statistics",
        "queries",
        "demo",
        "formats",
        "check",
    ],
    "labels": ["propensity", "blocks", "walk", "graph", "tree", "curves", "calibration", "lookup", "journal"],
    "augment": ["soft", "gandalf", "mixed", "labelmix", "mixup", "synonyms"],
    "shortlists": [
        "inverted",
        "lexical",
        "exact",
        "nearest",
        "pool",
        "meta",
        "near",
        "stored",
        "vectors",
        "hnsw",
        "lists",
        "search",
        "blend",
    ],
    "training": ["settings", "tables", "checkpoint", "logs", "loop", "network", "stages"],
    "serve": [
        "protocol",
        "settings",
        "messages",
        "access",
        "schemas",
        "openapi",
        "gauges",
        "registry",
        "batching",
        "routes",
        "app",
        "wire",
        "run",
    ],
    "bench": ["suite", "changes", "peers", "job", "lines", "table"],
    "encoders": ["inputs", "head", "bag", "convolutional", "modules", "encoding"],
}


def imported(tree: ast.AST) -> list[str]:
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in names if name.startswith("longtail.")]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_stands_above_it(path):
    stage, *rest = path.relative_to(SOURCE).with_suffix("").parts
    if stage == "__init__":
        return
    assert stage in ORDER, f"give {stage} its place in the flow"
    for name in imported(ast.parse(path.read_text())):
        _, other, *further = name.split(".")
        assert ORDER.index(other) <= ORDER.index(stage), f"{stage} imports {name}, which stands below it"
        if other == stage and stage in INSIDE and further and rest[0] != "__init__":
            inside = INSIDE[stage]
            assert inside.index(further[0]) <= inside.index(rest[0]), f"{stage}.{rest[0]} imports {name}"


def test_the_library_never_prints_nor_exits():
    for path in SOURCE.rglob("*.py"):
        if "cli" in path.parts:
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [call.id for call in calls if isinstance(call, ast.Name)]
        assert not {"print", "exit", "quit"} & set(names), path
