"""The core is open: an encoder, a loss of two directions and a recipe of two objectives that src/ has never seen.

They are trained, killed, continued, saved, loaded, indexed and served over HTTP like those that it knows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from serve.conftest import running
from small import board, same
from torch import nn
from torch.nn import functional

import longtail as lt
from longtail.artefact import build_artefact
from longtail.encoders.inputs import Bags
from longtail.model import Model
from longtail.parts import Encoder, Loss, Objective, Query, States, Step
from longtail.recipe import Recipe
from longtail.records import PARTS, named, record, register

BUCKETS = 512
pytestmark = pytest.mark.usefixtures("one_thread")


@record
class Trigrams(Encoder):
    """A toy encoder: the mean of the vectors of hashed character trigrams, then a layer."""

    part: ClassVar[str] = "toy_trigrams"
    dim: int = 32

    @property
    def width(self) -> int:
        return self.dim

    def inputs(self, tokenizer: Any, texts: Any) -> Bags:
        rows = [[zlib.crc32(text[i : i + 3].encode()) % BUCKETS for i in range(len(text) - 2)] for text in texts]
        starts = np.cumsum([0, *map(len, rows)])
        weights = np.repeat([1 / max(len(row), 1) for row in rows], np.diff(starts)).astype(np.float32)
        columns = np.array([bucket for row in rows for bucket in row], np.int32)
        bags = sp.csr_array((weights, columns, starts), shape=(len(rows), BUCKETS))
        bags.sum_duplicates()
        return Bags(bags)

    def build(self, start: Any, network: Any) -> TrigramTower:
        return TrigramTower(self, network)

    def open(self, arrays: Mapping[str, NDArray[Any]], tokenizer: Any) -> FrozenTrigrams:
        return FrozenTrigrams(self, arrays["toy.vectors"], arrays["toy.weight"])


class TrigramTower:
    """The toy encoder while it is trained."""

    def __init__(self, settings: Trigrams, network: Any) -> None:
        draw = np.random.default_rng(network.fit.seed)
        self.settings = settings
        self.tables = {"trigrams": network.table(draw.normal(size=(BUCKETS, settings.dim)).astype(np.float32))}
        self.module = nn.Linear(settings.dim, settings.dim, bias=False)

    def embed(self, inputs: Bags) -> torch.Tensor:
        rows = np.unique(inputs.matrix.indices).astype(np.int64)
        vectors = self.tables["trigrams"].gather(rows)
        weights = torch.from_numpy(inputs.matrix[:, rows].toarray())
        return weights @ vectors

    def expect(self, *inputs: Bags) -> None:
        """Gather nothing in advance."""

    def __call__(self, inputs: Bags, step: Step | None) -> States:
        embedded = self.embed(inputs)
        return States(self.module(embedded if step is None else step.apply("embeddings", embedded)))

    def take_over(self, other: TrigramTower) -> None:
        self.tables["trigrams"].values.copy_(other.tables["trigrams"].values)
        self.module.load_state_dict(other.module.state_dict())

    def freeze(self, tokenizer: Any) -> FrozenTrigrams:
        weight = self.module.weight.detach().numpy().copy()
        return FrozenTrigrams(self.settings, self.tables["trigrams"].values.numpy().copy(), weight)


@dataclass(frozen=True, eq=False)
class FrozenTrigrams:
    """The toy encoder as it is served."""

    settings: Trigrams
    vectors: NDArray[np.float32]
    weight: NDArray[np.float32]
    needs_torch: ClassVar[bool] = False

    def encode(self, query: Query) -> NDArray[np.float32]:
        inputs = self.settings.inputs(None, query.texts) if query.inputs is None else query.inputs
        return query.once(self, "vectors", lambda: self.encode_inputs(inputs))

    def encode_inputs(self, inputs: Bags) -> NDArray[np.float32]:
        return np.asarray((inputs.matrix @ self.vectors) @ self.weight.T, np.float32)

    def encode_one(self, query: Query) -> NDArray[np.float32]:
        return self.encode(query)[0]

    def operations(self) -> int:
        return 2 * self.weight.size

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"toy.vectors": self.vectors, "toy.weight": self.weight}


@record
class BothWays(Loss):
    """A toy loss of two directions: points choose labels, and labels choose points."""

    part: ClassVar[str] = "toy_both_ways"
    share: float = 0.5

    def __call__(self, scores: Any, targets: Any, mask: Any, weights: Any) -> Any:
        scores = scores if mask is None else scores.masked_fill(~mask, -30)
        forward = -(targets * functional.log_softmax(scores, 1)).sum(1) * weights
        backward = -(targets * weights[:, None] * functional.log_softmax(scores, 0)).sum(0)
        return self.share * forward.mean() + (1 - self.share) * backward.mean()


def toy() -> Recipe:
    """Two objectives over one encoder: label texts, and free rows behind a head; served side by side."""
    texts = named("rows", init="nothing", text="head")
    free = named("rows", init="random", text=None, bias=True, cosine=False)
    pool, loss = named("batch_pool", random=10), BothWays()
    return Recipe(
        name="toy",
        encoder=Trigrams(),
        objectives=(
            Objective(sampler=pool, classifier=texts, loss=loss),
            Objective(head=named("residual", dropout=0.1), sampler=pool, classifier=free, loss=loss, weight=0.5),
        ),
        stages=(named("training", epochs=12, batch_size=64, learning_rate=0.05, dense_learning_rate=0.01),),
    )


@pytest.fixture(scope="module", autouse=True)
def registered():
    places = {"toy_trigrams": "Trigrams", "toy_both_ways": "BothWays"}
    for name, place in places.items():
        register(name, f"{__name__}:{place}")
    yield
    for name in places:
        del PARTS[name]


@pytest.fixture(scope="module")
def model() -> Model:
    torch.set_num_threads(1)
    return lt.fit(toy(), board())


def test_it_learns(model):
    assert lt.evaluate(model, board()).values["P@1"] >= 90
    assert model.vectors.store.dim == 64  # two vectors side by side


def test_scores_are_the_weighted_sum_of_both_objectives(model):
    query, scorer = Query(["word3 filler1"]), model.vectors
    both = [part.score_one(query, np.arange(30)) for part in scorer.parts]
    np.testing.assert_allclose(scorer.score_one(query, np.arange(30)), both[0] + 0.5 * both[1], rtol=1e-4, atol=1e-5)


def test_it_comes_back_from_its_folder_and_is_served(model, tmp_path):
    model.save(tmp_path / "run")
    texts = ["word3 filler1", "word7", ""]
    loaded = Model.load(tmp_path / "run")
    assert same(loaded, model)
    assert np.array_equal(loaded.predict(texts, 3).labels, model.predict(texts, 3).labels)
    assert build_artefact(tmp_path / "run", search="hnsw", precision="int8").recall > 0.9
    index = lt.Index.load(tmp_path / "run")
    assert index.add(["word3 extra"]) == [30]
    assert index.predict(["word3 filler1"], 3).labels[0, 0] in (3, 21, 30)
    with running(index) as client:
        answer = client.post("/v1/predict", json={"texts": ["word7 filler1"], "k": 2}).json()
        assert answer["predictions"][0]["labels"][0]["id"] in (7, 23)


def test_it_continues_after_a_stop(model, tmp_path):
    def watch(_name: str, done: int, _total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    recipe = toy().override("training.save_seconds", 0)
    with pytest.raises(KeyboardInterrupt):
        lt.fit(recipe, board(), scratch=tmp_path, progress=watch)
    assert same(lt.fit(recipe, board(), scratch=tmp_path), model)


def test_augmentations_and_words_go_with_it():
    recipe = toy().override("training.epochs", 2).override("lexical", "lexical")
    mixed = lt.fit(Recipe(**recipe.fields() | {"augment": (named("gandalf"), named("mixup"))}), board(100))
    assert mixed.predict(["word3"], 2).labels.shape == (1, 2)
