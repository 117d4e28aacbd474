"""Label vectors from texts, from neighbours and combined, against loops over labels by the formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from golden.corpus import corpus
from small import dropless, networks, scores_of, short
from torch.utils._python_dispatch import TorchDispatchMode

from longtail.data.dataset import from_rows
from longtail.errors import DataError, ModelError, RecipeError
from longtail.labels.walk import normalised, random_walk
from longtail.parts import Objective, Query, Step
from longtail.recipe import Recipe
from longtail.records import named
from longtail.scorers.texts import open_combine
from longtail.training.tables import LocalTable
from longtail.types import Texts

DIM = 6
FREE = named("rows", init="label_text", text=None, cosine=False)
EACH, ONE = named("gated", activation="gelu"), named("gated", gates="one")
TEXT, GRAPH = named("label_text", transform=EACH), named("graph_text", transform=ONE)
CLASSIFIERS = {
    "label_text": named("label_text", transform=ONE, bias=True, bias_init="prior"),
    "label_text without a transform": named("label_text", transform=None),
    "label_text, cosines": named("label_text", transform=EACH, cosine=True, scale=3.0, bias=True),
    "graph_text": named("graph_text", transform=EACH, bias=True),
    "gates": named("combined", of=(TEXT, FREE), by="gates", bias=True),
    "gates, cosines": named("combined", of=(FREE, GRAPH), by="gates", cosine=True, scale=3.0),
    "attention": named("combined", of=(TEXT, GRAPH, FREE), by="attention", bias=True),
    "attention without free rows": named("combined", of=(TEXT, GRAPH), by="attention"),
}
every = pytest.mark.parametrize("name", CLASSIFIERS)
pytestmark = pytest.mark.usefixtures("one_thread")


def recipe_of(classifier: Any, encoder: Any = None, **more: Any) -> Recipe:
    """Train a classifier over labels, and the same one over clusters of them."""
    settings = {"sampler": named("clusters", num_clusters=8, top=2), "loss": named("bce")} | more
    over = Objective(over="clusters", sampler=named("all_labels"), classifier=classifier, loss=named("bce"))
    return dropless(
        Recipe(
            name="texts",
            encoder=encoder or named("bag", dim=DIM, init="random"),
            objectives=(Objective(classifier=classifier, **settings), over),
            stages=(named("training", epochs=1, batch_size=64),),
        )
    )


def moved(network: Any) -> Any:
    """Move every parameter and every table, so that nothing is as it started; the power iteration stands still."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in (*network.dense.parameters(), *(table.values for table in network.tables.values())):
            value.add_(0.4 * torch.randn(value.shape, generator=draw))
    network.dense.eval()
    return network


@pytest.fixture(scope="module")
def network_of() -> Callable[[str], Any]:
    """Build the network of each classifier once."""
    built: dict[str, Any] = {}

    def network(name: str) -> Any:
        if name not in built:
            built[name] = moved(networks(recipe_of(CLASSIFIERS[name]), corpus(150))["training"])
        return built[name]

    return network


# By the formulas, label by label


def spectral(layer: Any) -> torch.Tensor:
    weight = layer.parametrizations.weight
    return weight.original / (weight[0]._u @ weight.original @ weight[0]._v)


def gated(layer: Any, settings: Any, z: torch.Tensor) -> torch.Tensor:
    """a · (A activation(z) + bias) + b · z."""
    active = z.clamp_min(0) if settings.activation == "relu" else 0.5 * z * (1 + torch.erf(z / 2**0.5))
    inner = spectral(layer.layer) @ active + layer.layer.bias
    if settings.gates == "one":
        return layer.inner * inner + z
    return 1 / (1 + torch.exp(-layer.inner)) * inner + 1 / (1 + torch.exp(-layer.outer)) * z


def bags_of(network: Any, partition: Any) -> np.ndarray:
    """Weigh the words of each label text; a cluster has the sum of its labels', to length one."""
    bags = network.points.names.matrix.toarray()
    if partition is None:
        return bags
    sums = [sum(bags[label] for label in np.flatnonzero(partition.of == place)) for place in range(len(partition))]
    return np.stack([row / (np.linalg.norm(row) or 1) for row in sums])


def graph_of(network: Any, partition: Any) -> np.ndarray:
    """W over the square roots of what its rows and its columns sum to."""
    targets = network.fit.train.targets
    walk = random_walk(targets if partition is None else partition.targets(targets), seed=0).toarray()
    return walk / np.sqrt(walk.sum(1))[:, None] / np.sqrt(walk.sum(0))[None]


class Literal:
    """The vectors of labels, or clusters, one after the other; gradients go to leaves of its own."""

    def __init__(self, network: Any, place: int) -> None:
        self.term = network.terms[place]
        self.settings, self.classifier = self.term.objective.classifier, self.term.classifier
        self.words = network.tables["words"].values.clone().requires_grad_()
        tables = self.classifier.tables
        self.tables = {name: table.values.clone().requires_grad_() for name, table in tables.items()}
        self.bags = torch.from_numpy(bags_of(network, self.term.partition))
        self.graph = torch.from_numpy(graph_of(network, self.term.partition)).float()

    def sum_of(self, label: int) -> torch.Tensor:
        return sum(weight * self.words[word] for word, weight in enumerate(self.bags[label]) if weight)

    def part(self, settings: Any, label: int, module: Any) -> torch.Tensor:
        if settings.part == "rows":
            return self.tables["rows"][label]
        z = self.sum_of(label)
        if settings.part == "graph_text":
            z = sum(share * self.sum_of(near) for near, share in enumerate(self.graph[label]) if share)
        return z if settings.transform is None else gated(module.transform, settings.transform, z)

    def vector(self, label: int) -> torch.Tensor:
        settings, module = self.settings, self.classifier.module
        if settings.part != "combined":
            return self.part(settings, label, module)
        parts = [self.part(part, label, getattr(module, part.part)) for part in settings.of]
        if settings.by == "gates":
            gates = 1 / (1 + torch.exp(-module.combine.gates))
            return sum(gate * part for gate, part in zip(gates, parts, strict=True))
        layer, shares = module.combine.layer, spectral(module.combine.shares)
        inner = torch.cat([spectral(layer) @ part.clamp_min(0) + layer.bias for part in parts])
        powers = torch.exp(shares @ inner)
        return sum(power / powers.sum() * part for power, part in zip(powers, parts, strict=True))

    def scores(self, inputs: Any, labels: np.ndarray) -> torch.Tensor:
        rows = []
        for bag in torch.from_numpy(inputs.matrix.toarray()):
            point, row = bag @ self.words, []
            for label in labels:
                vector, bias = self.vector(label), self.tables["bias"][label] if "bias" in self.tables else 0
                if self.settings.cosine:
                    scale = torch.exp(self.classifier.module.log_scale[0])
                    row.append(scale * (point @ vector) / point.norm() / vector.norm() + bias)
                else:
                    row.append(point @ vector + bias)
            rows.append(torch.stack(row))
        return torch.stack(rows)


def dense(table: LocalTable) -> torch.Tensor:
    """Lay the gradient of the rows that a step gathered out over the table."""
    rows, gradient = table.gradient()
    out = torch.zeros_like(table.values)
    return out if rows is None else out.index_add_(0, rows, gradient)


@pytest.mark.parametrize("place", [0, 1], ids=["labels", "clusters"])
@every
def test_scores_and_gradients_are_those_of_the_formulas(name, place, network_of):
    network = network_of(name)
    term, inputs = network.terms[place], network.points.inputs.take(np.arange(4))
    labels = np.array([1, 2, 5, 17, 38] if place == 0 else [0, 3, 6])
    pull = torch.randn(4, len(labels), generator=torch.Generator().manual_seed(1))
    parameters = dict(term.classifier.module.named_parameters())
    for table in network.tables.values():
        table.gathered.clear()
    network.dense.zero_grad()
    step = Step(np.random.default_rng(0), 1.0, network)
    scores = scores_of(term, network.tower(inputs, step), labels, step)
    (scores * pull).sum().backward()
    ours = {key: parameter.grad for key, parameter in parameters.items()}
    tables = {key: dense(table) for key, table in term.classifier.tables.items()}
    words = dense(network.tables["words"])

    network.dense.zero_grad()
    literal = Literal(network, place)
    expected = literal.scores(inputs, labels)
    (expected * pull).sum().backward()
    torch.testing.assert_close(scores.detach(), expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(words, literal.words.grad, rtol=1e-3, atol=1e-4)
    assert words.abs().sum() > 0
    for key, leaf in literal.tables.items():
        torch.testing.assert_close(tables[key], leaf.grad, rtol=1e-3, atol=1e-4)
        assert tables[key][np.setdiff1d(np.arange(len(tables[key])), labels)].abs().sum() == 0
    for key, parameter in parameters.items():
        torch.testing.assert_close(ours[key], parameter.grad, rtol=1e-3, atol=1e-4, msg=key)
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("place", [0, 1], ids=["labels", "clusters"])
@every
def test_what_is_served_is_what_is_trained(name, place, network_of):
    network = network_of(name)
    literal = Literal(network, place)
    store = network.terms[place].freeze().store
    scale = torch.exp(literal.classifier.module.log_scale).item() if literal.settings.cosine else 1.0
    with torch.no_grad():
        rows = torch.stack([literal.vector(label) for label in range(len(literal.bags))]).numpy()
    if literal.settings.cosine:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(store.take(slice(None)), rows, rtol=1e-3, atol=1e-4)
    bias = literal.tables["bias"].detach().numpy() / scale if "bias" in literal.tables else 0
    np.testing.assert_allclose(store.bias, np.zeros(len(rows)) + bias, rtol=1e-5)


@every
def test_rows_of_new_labels_come_from_their_texts(name, network_of):
    network = network_of(name)
    scorer, literal, texts = network.terms[0].freeze(), Literal(network, 0), network.fit.train.labels.texts.tolist()
    made = scorer.rows_for([texts[7], "kind3 kind5 guide", "qwertyuiop", ""])
    assert not made[2:].any()  # no word is known
    tokens = network.fit.tokenizer
    literal.bags = torch.from_numpy(tokens.bag([texts[7], "kind3 kind5 guide"]).toarray())
    literal.graph = torch.eye(2)  # a new label has no neighbours, and no free row: its text stands for both
    with torch.no_grad():
        literal.tables["rows"] = torch.stack([literal.sum_of(label) for label in range(2)])
        expected = torch.stack([literal.vector(label) for label in range(2)]).numpy()
    if literal.settings.cosine:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(made[:2], expected, rtol=1e-3, atol=1e-4)
    if CLASSIFIERS[name].part == "label_text":  # the text of a trained label gives its vector
        np.testing.assert_allclose(made[0], scorer.store.take(np.array([7]))[0], rtol=1e-4, atol=1e-5)


@every
def test_label_vectors_come_back_from_their_arrays(name, network_of):
    scorer = network_of(name).terms[0].freeze()
    arrays = {key: np.array(array) for key, array in scorer.arrays().items()}
    opened = CLASSIFIERS[name].open(arrays, scorer.tower, None, DIM)
    texts = ["kind3 theme3", "guide verb1", ""]
    np.testing.assert_array_equal(opened.rows_for(texts), scorer.rows_for(texts))
    np.testing.assert_array_equal(opened.top(Query(texts), 5), scorer.top(Query(texts), 5))
    for key in [key for key in arrays if key.startswith("texts.")]:
        with pytest.raises(ModelError, match="damaged"):
            CLASSIFIERS[name].open(arrays | {key: arrays[key][:-1]}, scorer.tower, None, DIM)


@pytest.mark.parametrize("by", ["gates", "attention"])
def test_gates_and_attention_start_where_all_parts_count_alike(by):
    recipe = recipe_of(named("combined", of=(TEXT, FREE), by=by))
    network = networks(recipe, corpus(100))["training"]
    combine = network.terms[0].classifier.combine
    vectors = [torch.randn(3, DIM), torch.randn(3, DIM)]
    if by == "gates":
        torch.testing.assert_close(combine(vectors, None), (vectors[0] + vectors[1]) / 2)
    frozen = open_combine(combine.freeze().arrays(), by, 2, DIM)
    combine.eval()
    with torch.no_grad():
        expected = combine(vectors, Step(np.random.default_rng(0), 1.0, network)).numpy()
    np.testing.assert_allclose(frozen([part.numpy() for part in vectors]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoder", ["cnn", "inception"])
def test_encoders_of_words_in_order_sum_weighed_words(encoder):
    settings: dict[str, Any] = {"max_tokens": 4, "init": "random"}
    made = {
        "cnn": (named("cnn", dim=16, filters=8, width=16, **settings), None),
        "inception": (
            named("inception", dim=64, channels=4, branches="mixture", **settings),
            named("convolved", channels=4),
        ),
    }[encoder]
    recipe = recipe_of(CLASSIFIERS["attention"], made[0], head=made[1], sampler=named("all_labels"))
    network = moved(networks(replace(recipe, objectives=recipe.objectives[:1]), corpus(100))["training"])
    term = network.terms[0]
    words, weights = network.tables["words"].values.numpy(), network.tower.weights
    counts = network.points.names.bags(len(words)).toarray() * weights
    sums = (counts / np.linalg.norm(counts, axis=1, keepdims=True)) @ words
    with torch.no_grad():
        np.testing.assert_allclose(network.tower.sums(term.names).numpy(), sums, rtol=1e-4, atol=1e-5)
    scorer = term.freeze()
    step = Step(np.random.default_rng(0), 1.0, network)
    with torch.no_grad():
        scores = scores_of(term, network.tower(network.points.inputs, None), np.arange(40), step).numpy()
    encoded, rows = scorer.encoded(Query.of_inputs(network.points.inputs)), scorer.store.take(slice(None))
    np.testing.assert_allclose(encoded @ rows.T + scorer.store.bias, scores, rtol=1e-3, atol=1e-3)
    texts = network.fit.train.labels.texts.tolist()
    np.testing.assert_allclose(scorer.tower.sums(Query(texts)), sums, rtol=1e-4, atol=1e-5)


# What a step costs


def crowded(labels: int) -> Any:
    """Make the same points for any number of labels, of which only the first two hundred have points."""
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in draw.integers(0, 300, 5)) for _ in range(300)]
    rows = [sorted(set(draw.integers(0, 200, 3).tolist())) for _ in range(300)]
    names = [f"w{label % 300} name{label}" for label in range(labels)]
    return from_rows({"train": (texts, rows)}, label_texts=names).train


class Largest(TorchDispatchMode):
    """Notes the largest tensor that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, torch.Tensor):
                self.entries = max(self.entries, part.numel())
        return out


def test_a_step_reads_the_rows_of_its_labels_and_their_neighbours_alone():
    pool = named("batch_pool", random=0)
    recipe = recipe_of(CLASSIFIERS["attention"], sampler=pool)
    recipe = replace(recipe, objectives=recipe.objectives[:1])
    read, largest = [], []
    real = LocalTable.gather
    for labels in (200, 20_000):
        network = networks(recipe, crowded(labels))["training"]
        names = {id(table): name for name, table in network.tables.items()}
        gathered: list[tuple[str, list[int]]] = []

        def gather(self, rows, names=names, gathered=gathered):
            gathered.append((names[id(self)], rows.tolist()))
            return real(self, rows)

        with patch.object(LocalTable, "gather", gather), Largest() as made:
            loss = network.loss(np.arange(20), np.random.default_rng(0))
            loss.backward()
        wanted = np.unique(network.points.targets[:20].indices)
        texts = network.terms[0].classifier.texts(wanted)
        graph = random_walk(network.fit.train.targets, seed=0)
        assert texts.tolist() == np.unique(graph[wanted].indices).tolist()
        assert [rows for name, rows in gathered if name == "rows0"] == [wanted.tolist()]
        words = [rows for name, rows in gathered if name == "words"]
        assert len(words) == 1 and len(words[0]) < 600  # once, those of points, labels and neighbours
        read.append([(name, len(rows)) for name, rows in gathered])
        largest.append(made.entries)
    assert read[0] == read[1]
    assert largest[0] == largest[1] < 20_000


def test_a_dual_encoder_needs_the_text_of_every_label():
    train = corpus(100)
    texts = ["", " ", *train.labels.texts.tolist()[2:]]
    some = replace(train, labels=replace(train.labels, texts=Texts(texts)))
    for name in ("depsl", "ngame", "siamesexml"):
        with pytest.raises(DataError, match=f"2 of {len(texts)} labels have no text, by which {name} .* frugal"):
            networks(short(name), some)
    networks(short("decaf"), some)  # has rows beside texts


def test_what_does_not_fit_is_refused():
    with pytest.raises(RecipeError, match="needs parts that make label vectors"):
        recipe_of(named("combined", of=())).check()
    with pytest.raises(RecipeError, match="needs parts that make label vectors"):
        recipe_of(named("combined", of=(named("dense_rows"),))).check()
    with pytest.raises(RecipeError, match="text=none"):
        recipe_of(named("combined", of=(TEXT, named("rows", init="nothing", text="head")))).check()
    with pytest.raises(RecipeError, match="take texts as words"):
        recipe_of(named("combined", of=(named("label_text", texts="tower"), FREE))).check()
    with pytest.raises(RecipeError, match="one part of each kind"):
        recipe_of(named("combined", of=(TEXT, TEXT))).check()
    nameless = corpus(100)
    nameless = replace(nameless, labels=replace(nameless.labels, texts=None))
    for name in ("label_text", "gates"):
        with pytest.raises(DataError, match="texts makes label vectors from them"):
            networks(recipe_of(CLASSIFIERS[name]), nameless)


def test_a_pruned_graph_is_taken_where_a_stage_has_made_one():
    recipe = recipe_of(CLASSIFIERS["graph_text"], sampler=named("all_labels"))
    recipe = replace(recipe, objectives=recipe.objectives[:1])
    surrogate = named("surrogate", num_clusters=8, training=named("loop", epochs=1, batch_size=64))
    stages = (surrogate, named("recluster", prune=0.0, num_clusters=4), *recipe.stages)  # nothing is so near
    network = networks(replace(recipe, stages=stages), corpus(100))["training"]
    graph, walk = network.terms[0].classifier.graph, random_walk(network.fit.train.targets, seed=0)
    apart = graph.toarray() == 0
    kept = sp.csr_array(np.where(apart, 0, walk.toarray()))
    assert 40 <= kept.nnz < walk.nnz  # labels with the same points stay neighbours
    np.testing.assert_allclose(graph.toarray(), normalised(kept).toarray(), rtol=1e-5)
    np.testing.assert_array_equal(network.terms[0].classifier.texts(np.array([3, 9])), [3, 9])
