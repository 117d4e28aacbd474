"""The flow is the tree: a module imports only what stands above it."""

from __future__ import annotations

import ast
import importlib

import pytest
from conftest import ROOT

import longtail
from longtail.records import Part

SOURCE = ROOT / "src" / "longtail"
ORDER = [
    "errors", "system", "limits", "markup", "types", "machine", "kernels", "shards", "whole", "files", "packed",
    "arrays", "data", "labels",
    "records", "parts", "recipe", "augment", "encoders", "search", "stores", "scorers", "samplers", "classifiers",
    "losses", "predictions", "probabilities", "thresholds", "scales", "card", "folder", "signatures", "explanations",
    "model", "continuing", "training", "artefact", "stored", "index", "doctor", "upgrade", "answering", "answers",
    "engines", "evaluation", "metrics", "comparison", "report", "page", "recipes",
    "auto", "estimates", "pipeline", "estimator", "bench", "serve", "cli", "start",
    "__main__",
]  # fmt: skip
INSIDE = {
    "data": [
        "problems",
        "rows",
        "fingerprint",
        "holding",
        "dataset",
        "function_words",
        "spelling",
        "unspaced",
        "tokens",
        "sequences",
        "pretrained",
        "vectors",
        "docstrings",
        "statistics",
        "demo",
        "formats",
        "check",
        "queries",
    ],
    "labels": [
        "propensity",
        "blocks",
        "walk",
        "graph",
        "spilled",
        "tree",
        "curves",
        "calibration",
        "lookup",
        "kept",
        "levels",
        "matching",
        "journal",
    ],
    "augment": ["soft", "gandalf", "mixed", "labelmix", "mixup", "mixups", "ssmix", "tailmix", "synonyms"],
    "encoders": [
        "inputs",
        "heads",
        "convolved",
        "bag",
        "ordered",
        "recurrent",
        "inception",
        "cnn",
        "transformer",
        "towers",
    ],
    "search": [
        "exact",
        "prefetching",
        "selection",
        "postings",
        "inverted",
        "graph",
        "quantised",
        "hnsw",
        "ivf",
        "nearest",
    ],
    "stores": ["memory", "engine", "qdrant", "qdrant_server", "postgres", "milvus", "shards"],
    "scorers": [
        "texts",
        "wrapped",
        "vectors",
        "attention",
        "clusters",
        "tree",
        "near",
        "reranked",
        "traversed",
        "ensemble",
        "lexical",
        "beam",
        "linear",
        "fused",
        "added",
    ],
    "samplers": ["batch_pool", "all_labels", "clusters", "beam", "tree", "drawn", "near"],
    "classifiers": [
        "normalised",
        "products",
        "combine",
        "texts",
        "rows",
        "dense_rows",
        "attention",
        "solver",
        "sparse",
    ],
    "losses": ["bce", "softmax", "decoupled", "contrastive", "sums", "triplet", "chunks", "chunked"],
    "training": [
        "scratch",
        "noise",
        "tables",
        "orders",
        "settings",
        "checkpoint",
        "logs",
        "shared",
        "term",
        "network",
        "loop",
        "stages",
        "learn",
    ],
    "serve": [
        "protocol",
        "settings",
        "messages",
        "held",
        "access",
        "access_log",
        "feedback",
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
    "engines": ["processes", "pools", "places", "batches", "graphs"],
    "auto": ["portfolio", "search"],
    "bench": ["variants", "suite", "changes", "peers", "points", "job", "lines", "table"],
}


LATER = {"encoders": ["towers"]}  # imported when something is built, by what stands before it
CORE = ("training", "pipeline", "model", "index", "predictions", "artefact")  # knows kinds of parts, never one of them
CONCRETE = ("augment", "encoders", "samplers", "classifiers", "losses", "recipes")


def imported(tree: ast.AST) -> list[str]:
    """List the modules of longtail that a module imports, wherever the import stands and however it is written."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError("relative imports hide where a module stands")
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.startswith("longtail.")]


def stages(name: str) -> list[str]:
    """Cut the name of a module, or of what is in one, into the steps of the tree."""
    steps = name.split(".")[1:]
    while steps and not (SOURCE.joinpath(*steps).is_dir() or SOURCE.joinpath(*steps).with_suffix(".py").is_file()):
        steps = steps[:-1]
    return steps


MODULES = sorted(SOURCE.rglob("*.py"))
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))


@each_module
def test_a_module_imports_only_what_stands_above_it(path):
    stage, *rest = path.relative_to(SOURCE).with_suffix("").parts
    if stage == "__init__":
        return
    assert stage in ORDER, f"give {stage} its place in the flow"
    for name in imported(ast.parse(path.read_text())):
        steps = stages(name)
        if not steps:  # a public name of the package itself: it stands where it comes from
            public = name.removeprefix("longtail.")
            if public == "__version__":
                continue
            steps = stages(longtail._WHERE[public])
        other, *further = steps
        assert ORDER.index(other) <= ORDER.index(stage), f"{stage} imports {name}, which stands below it"
        if other == stage and stage in INSIDE and further and rest[0] != "__init__":
            inside = INSIDE[stage]
            if further[0] not in LATER.get(stage, []):
                assert inside.index(further[0]) <= inside.index(rest[0]), f"{stage}.{rest[0]} imports {name}"


def core_modules():
    return [path for path in MODULES if path.relative_to(SOURCE).with_suffix("").parts[0] in CORE]


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_core_imports_no_concrete_part(path):
    own = path.relative_to(SOURCE).with_suffix("").parts
    for name in imported(ast.parse(path.read_text())):
        steps = stages(name) or stages(longtail._WHERE[name.removeprefix("longtail.")])
        assert steps[0] not in CONCRETE, f"{path.name} imports {name}"
        if steps[:2] == ["training", "stages"]:
            assert own[:2] == ("training", "stages"), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_core_never_asks_what_a_part_is(path):
    module = importlib.import_module(".".join(["longtail", *path.relative_to(SOURCE).with_suffix("").parts]))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            kinds = eval(compile(ast.Expression(node.args[1]), str(path), "eval"), vars(module))
            for kind in kinds if isinstance(kinds, tuple) else getattr(kinds, "__args__", (kinds,)):
                assert not issubclass(kind, Part), f"{path.name}:{node.lineno} asks whether a part is {kind.__name__}"


def test_types_are_known_without_casts_and_attributes_without_defaults():
    casts, defaults = [], []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                casts += [f"{path.name}:{node.lineno}"] if node.func.id == "cast" else []
                defaults += [f"{path.name}:{node.lineno}"] if node.func.id == "getattr" and len(node.args) == 3 else []
    assert len(casts) <= 5, casts
    assert len(defaults) <= 5, defaults


def test_the_library_never_prints_nor_exits():
    for path in MODULES:
        if "cli" in path.parts:
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [call.id for call in calls if isinstance(call, ast.Name)]
        assert not {"print", "exit", "quit"} & set(names), path
