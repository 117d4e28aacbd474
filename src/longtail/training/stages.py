"""RECIPE + POINTS → INDEX: the stages of a training, one after the other, each of which a killed run continues.

surrogate   the encoder learns clusters of labels; then, if the recipe says so, its word vectors are frozen
mining      what is near each point becomes its hard negatives, and the guide of predictions
training    label rows, and the encoder unless it is frozen
rerank      a second network learns to rank what the first one finds
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.classifiers.linear import Linear
from longtail.data.dataset import Split
from longtail.data.sequences import Sequences
from longtail.data.tokens import Words
from longtail.data.vectors import word_vectors
from longtail.encoders.bag import Bag
from longtail.encoders.convolutional import Cnn, Inception
from longtail.encoders.inputs import Bags, Inputs, Ordered
from longtail.errors import RecipeError
from longtail.labels.tree import Clusters, clusters, pifa, smoothed
from longtail.labels.walk import random_walk
from longtail.recipe import Part, Recipe
from longtail.shortlists.meta import Meta, MetaGuide
from longtail.shortlists.near import Near, NearGuide
from longtail.shortlists.pool import Everything, Pool
from longtail.shortlists.vectors import VectorIndex
from longtail.training.checkpoint import Checkpoint
from longtail.training.loop import Loop, Validate
from longtail.training.network import CHUNK, Network, Plan, Points
from longtail.training.settings import Rerank, Surrogate, Training
from longtail.types import Floats, LabelMatrix, Progress, TopK, contains, no_pairs, rows_of

WEIGHTS = (0.3, 0.6, 1.0)  # of augmented points, that are tried
EACH = 8  # labels of a cluster, where a recipe does not say how many clusters
BETAS = np.linspace(0.1, 0.9, 9)


@dataclass(frozen=True, eq=False)
class Material:
    """What all stages share."""

    recipe: Recipe
    train: Split
    held: Split | None  # points that nothing is learnt from
    words: Words
    points: Points
    vectors: Floats  # (V, D) where word vectors start
    scratch: Path | None
    fingerprint: str
    progress: Progress | None


def learn(
    recipe: Recipe,
    train: Split,
    words: Words,
    *,
    held: Split | None = None,
    fingerprint: str = "",
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> tuple[VectorIndex, Sequences | None]:
    """Walk through the stages of a recipe; gives the index and the vocabulary in order, where the encoder has one."""
    check(recipe)
    if isinstance(recipe.encoder, Inception) and min(cast(Training, recipe.training).batch, len(train)) < 2:
        raise RecipeError(f"{recipe.name}: its batch norms need two points: --set training.batch=2, or more data")
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    made = _material(recipe, train, words, held, (fingerprint, scratch, progress))
    vocabulary = made.points.vocabulary
    settings = cast(Training, recipe.training)
    if settings.augmented == "choose":
        made = _weighed(made, settings)
    return _stages(made, settings), None if isinstance(vocabulary, Words) else vocabulary


def _stages(made: Material, settings: Training) -> VectorIndex:
    """Run surrogate, training and rerank."""
    recipe, shortlist = made.recipe, made.recipe.shortlist
    vectors, guide, mined, first = made.vectors, None, None, None
    frozen: tuple[str, ...] = ()
    if isinstance(recipe.surrogate, Surrogate):
        first = _surrogate(made, recipe.surrogate)
        vectors = first.tables["words"].values.cpu().numpy().copy()
        frozen = ("words", "encoder") if recipe.surrogate.freeze else ()
        if isinstance(shortlist, Near):
            near = first.vectors_of(made.points.inputs)
            guide = NearGuide.build(shortlist, near, made.points.targets)
            mined = _mined(guide, near, made.points, shortlist.mined)
    plan = Plan(
        cast(Part, recipe.encoder), cast(Part, shortlist), cast(Linear, recipe.classifier), recipe.loss, settings,
        frozen, _mixers(made), _replacer(made), _clusters(made) if isinstance(shortlist, Meta) else None, mined,
    )  # fmt: skip
    network = _network(made, plan, made.points, vectors)
    if first is not None:
        network.dense.encoder.load_state_dict(first.dense.encoder.state_dict())
    _run(made, network, "training", settings, validate=_validate(made, network, guide))
    index = network.index()
    if guide is not None and isinstance(shortlist, Near):
        if not frozen:  # what is near is asked in the space that the encoder has moved to
            guide = NearGuide.build(shortlist, network.vectors_of(made.points.inputs), made.points.targets)
        index = _with_beta(replace(index, guide=guide), made.held, shortlist)
    if isinstance(recipe.rerank, Rerank):
        index = replace(index, second=_reranked(made, recipe.rerank, index), again=recipe.rerank.top)
    return index


def check(recipe: Recipe) -> None:
    """Check that a recipe has the parts of a network, and that they fit each other."""
    parts: dict[str, tuple[type[Part], ...]] = {
        "encoder": (Bag, Inception, Cnn),
        "shortlist": (Everything, Pool, Meta),
        "classifier": (Linear,),
        "training": (Training,),
    }
    for name, kinds in parts.items():
        if not isinstance(getattr(recipe, name), kinds):
            names = " or ".join(kind.part for kind in kinds)
            raise RecipeError(f"{recipe.name}: {name} must be {names} here, not {getattr(recipe, name)!r}")
    if isinstance(recipe.shortlist, Near) and recipe.surrogate is None:
        raise RecipeError(f"{recipe.name}: the shortlist `near` needs a surrogate stage: --set surrogate=surrogate")
    if isinstance(recipe.shortlist, Meta) and cast(Linear, recipe.classifier).text:
        raise RecipeError(f"{recipe.name}: label texts in label vectors need a pool: --set classifier.text=null")
    if recipe.rerank is not None and not isinstance(recipe.shortlist, Near):
        raise RecipeError(f"{recipe.name}: reranking needs the shortlist `near`: --set rerank=null")
    started = cast(Linear, recipe.classifier).start in ("random", "nothing")
    if isinstance(recipe.encoder, Inception | Cnn) and not started:
        raise RecipeError(f"{recipe.name}: label rows of this encoder start at random: --set classifier.start=random")


def _material(
    recipe: Recipe, train: Split, words: Words, held: Split | None, run: tuple[str, Path | None, Progress | None]
) -> Material:
    """Turn texts into numbers and choose where word vectors start."""
    texts, encoder = train.need_texts("training"), cast(Any, recipe.encoder)
    names = train.labels.texts
    vocabulary: Words | Sequences = words
    if isinstance(encoder, Bag):
        inputs: Inputs = Bags(words.bag(texts))
        named: Inputs | None = None if names is None else Bags(words.bag(names))
    else:
        vocabulary = Sequences.fit(texts, names or [])
        inputs = Ordered(vocabulary.ids(texts, encoder.words))
        named = None if names is None else Ordered(vocabulary.ids(names, encoder.words))
    weight = cast(Training, recipe.training).augmented
    weights = _weights(train, 1.0 if weight == "choose" else weight)
    points = Points(inputs, train.targets, train.excluded, weights, vocabulary, named)
    together = _bags([inputs, *([] if named is None else [named])], len(vocabulary))
    vectors = word_vectors(vocabulary.vocabulary, encoder.dim, encoder.start, together, seed=recipe.seed)
    fingerprint, scratch, progress = run
    return Material(recipe, train, held, words, points, vectors, scratch, fingerprint, progress)


def _weights(train: Split, weight: float) -> Floats:
    """Weigh the points that an augmentation made, each by the target that it is surest of."""
    if train.augmented is None:
        return np.ones(len(train), np.float32)
    surest = train.targets.max(axis=1).toarray().ravel() if train.targets.nnz else np.zeros(len(train))
    return np.where(train.augmented, weight * np.minimum(surest, 1), 1.0).astype(np.float32)


def _bags(parts: list[Inputs], width: int) -> sp.csr_array:
    """Stack inputs as bags, whichever way they are held."""
    held = []
    for part in parts:
        if isinstance(part, Bags):
            held.append(part.matrix)
        elif isinstance(part, Ordered):
            bag = rows_of(np.where(part.ids > 0, part.ids, -1), np.ones(part.ids.shape), width)
            bag.sum_duplicates()
            held.append(bag)
    return sp.csr_array(sp.vstack(held))


def _mixers(made: Material) -> list[Any]:
    """Make the augmentations ready that act on batches."""
    parts = [part for part in made.recipe.augment if getattr(part, "acts_on", "") == "batch"]
    return [cast(Any, part).prepare(made.train, seed=made.recipe.seed) for part in parts]


def _replacer(made: Material) -> Any:
    """Make synonyms ready, if the recipe has them."""
    for part in made.recipe.augment:
        if getattr(part, "acts_on", "") == "words":
            return cast(Any, part).prepare(made.vectors).replace
    return None


def _clusters(made: Material, count: int | None = None) -> Clusters:
    """Put the labels into clusters, by the original points alone."""
    original, meta = made.train.original, made.recipe.shortlist
    bags = made.words.bag(original.need_texts("clusters"))
    names = None if original.labels.texts is None else made.words.bag(original.labels.texts)
    vectors = pifa(original.targets, bags, names=names)
    smooth = isinstance(meta, Meta) and meta.smoothed
    if smooth:
        vectors = smoothed(vectors, random_walk(original.targets, seed=made.recipe.seed))
    wanted = count or (meta.clusters if isinstance(meta, Meta) else None) or max(2, len(original.labels) // EACH)
    return Clusters.build(clusters(vectors, wanted, seed=made.recipe.seed))


def _network(made: Material, plan: Plan, points: Points, vectors: Floats) -> Network:
    """Build a network on the device of the training."""
    import torch  # noqa: PLC0415

    device = plan.training.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as reason:  # torch has an assertion for a missing GPU
        what = str(reason).splitlines()[0]
        raise RecipeError(f"training.device is {device!r}: {what}; use auto, cpu, cuda or cuda:0") from None
    return Network(plan, points, vectors.copy(), seed=made.recipe.seed, device=device)


def _run(made: Material, network: Network, name: str, settings: Training, *, validate: Validate | None = None) -> None:
    """Train one stage, from its checkpoint if there is one."""
    checkpoint = None
    if made.scratch is not None:
        identity = {"recipe": made.recipe.dump(), "data": made.fingerprint, "stage": name}
        checkpoint = Checkpoint(made.scratch / f"{name}.safetensors", identity)
    similar = _similar(made, settings.clustered) if settings.clustered > 1 else None
    loop = Loop(network, len(made.points.inputs), settings, seed=made.recipe.seed, similar=similar)
    refresh = network.plan.shortlist.refresh if isinstance(network.plan.shortlist, Pool) else 0
    loop.run(
        name=name,
        checkpoint=checkpoint,
        folder=made.scratch,
        progress=made.progress,
        validate=validate,
        refresh=refresh,
    )


def _similar(made: Material, size: int) -> Any:
    """Order the points so that similar ones stand side by side."""
    inputs = made.points.inputs
    bags = inputs.matrix if isinstance(inputs, Bags) else made.words.bag(made.train.need_texts("batches"))
    of = clusters(bags, max(1, len(inputs) // size), seed=made.recipe.seed)
    return np.argsort(of, kind="stable")


def _surrogate(made: Material, stage: Surrogate) -> Network:
    """Teach the encoder the clusters of the labels."""
    found = _clusters(made, min(stage.clusters, len(made.train.labels)))
    targets = found.targets(made.points.targets)
    excluded = _wrong(found.targets(made.points.excluded), targets, no_pairs(targets.shape))
    points = replace(made.points, targets=targets, excluded=excluded, names=None)
    rows = Linear(start="random", text=None, bias=True, cosine=False)
    encoder = cast(Part, made.recipe.encoder)
    encoder = replace(encoder, residual=False) if isinstance(encoder, Bag) else encoder
    plan = Plan(encoder, Everything(), rows, "bce_mean", stage.training, mixers=[], replace=_replacer(made))
    network = _network(made, plan, points, made.vectors)
    _run(made, network, "surrogate", stage.training)
    return network


def _mined(guide: NearGuide, vectors: Floats, points: Points, most: int) -> sp.csr_array:
    """List what is near each point and wrong."""
    held = []
    for start in range(0, len(vectors), CHUNK):
        some = slice(start, start + CHUNK)
        found = guide.candidates(vectors[some])
        held.append(_best_entries(_wrong(found, points.targets[some], points.excluded[some]), most))
    return sp.csr_array(sp.vstack(held))


def _wrong(found: sp.csr_array, targets: LabelMatrix, excluded: LabelMatrix) -> sp.csr_array:
    """Drop the pairs that are right, and those that nothing may be learnt from."""
    wrong = sp.csr_array(found - found.multiply((targets + excluded) > 0))
    wrong.eliminate_zeros()
    return wrong


def _best_entries(matrix: sp.csr_array, most: int) -> sp.csr_array:
    """Keep the largest entries of each row."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((-matrix.data, rows))
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], np.diff(matrix.indptr))
    kept = order[place < most]
    found = sp.csr_array((matrix.data[kept], (rows[kept], matrix.indices[kept])), shape=matrix.shape)
    found.sort_indices()
    return found


def _validate(made: Material, network: Network, guide: NearGuide | None) -> Validate | None:
    """Measure held-out points, where the settings ask for it."""
    settings, held = cast(Training, made.recipe.training), made.held
    if held is None or not (settings.patience or settings.curves):
        return None
    some = held.take(np.arange(min(len(held), 1000)))

    def measure() -> dict[str, float]:
        index = network.index()
        index = index if guide is None else replace(index, guide=guide)
        hits = _hits(index, some)
        found = {"P@1+3+5": 100 * sum(float(hits[:, :k].sum(axis=1).mean() / k) for k in (1, 3, 5))}
        found["P@1"] = 100 * float(hits[:, 0].mean())
        if isinstance(index.guide, MetaGuide):
            found["meta P@1"] = _meta_precision(index, index.guide, some)
        return found

    return measure


def _hits(index: VectorIndex, held: Split) -> NDArray[np.bool_]:
    """Tell which of the five best labels of held-out points are right, (N, 5)."""
    spare = int(np.diff(held.excluded.indptr).max(initial=0))
    labels, scores = index.top(held.need_texts("validation").tolist(), 5 + spare)
    return contains(held.targets, TopK(labels, scores).without(held.excluded, 5).labels)


def _quality(index: VectorIndex, held: Split) -> float:
    """Sum P@1 and P@5 of held-out points."""
    hits = _hits(index, held)
    return float(hits[:, 0].mean() + hits.mean())


def _meta_precision(index: VectorIndex, guide: MetaGuide, held: Split) -> float:
    """Tell how often the best cluster holds a positive."""
    right = []
    for some, vectors in index.blocks(held.need_texts("validation").tolist()):
        best = guide.scores(vectors).argmax(axis=1)
        wanted = guide.clusters.targets(held.targets[some])
        right.append(contains(wanted, best[:, None].astype(np.int32)))
    return 100 * float(np.concatenate(right).mean())


def _with_beta(index: VectorIndex, held: Split | None, settings: Near) -> VectorIndex:
    """Choose the share of the label rows in the score on held-out points."""
    if settings.beta is not None or held is None or not isinstance(index.guide, NearGuide):
        return index

    def value(beta: float) -> float:
        return _quality(replace(index, guide=replace(cast(NearGuide, index.guide), beta=float(beta))), held)

    best = float(max(BETAS, key=value))
    return replace(index, guide=replace(index.guide, beta=best))


def _reranked(made: Material, stage: Rerank, first: VectorIndex) -> VectorIndex:
    """Train a second network on what the first one finds for the training points."""
    texts = made.train.need_texts("reranking").tolist()
    labels, scores = first.top(texts, stage.top)
    wrong = _wrong(rows_of(labels, scores + 1, made.points.targets.shape[1]), made.points.targets, made.points.excluded)
    plan = Plan(
        cast(Part, made.recipe.encoder), Pool(random=200, hard=20), cast(Linear, made.recipe.classifier),
        made.recipe.loss, stage.training, (), _mixers(made), _replacer(made), None, wrong,
    )  # fmt: skip
    network = _network(made, plan, made.points, made.vectors)
    _run(made, network, "rerank", stage.training)
    return network.index()


def _weighed(made: Material, settings: Training) -> Material:
    """Try weights for augmented points in short runs on held-out points, and keep the best."""
    marks, held = made.train.augmented, made.held
    if marks is None or held is None:
        return made
    short = settings.override("epochs", max(1, settings.epochs // 4))

    def weighed(weight: float) -> Material:
        return replace(made, points=replace(made.points, weights=_weights(made.train, weight)))

    def value(weight: float) -> float:
        return _quality(_stages(replace(weighed(weight), scratch=None), short), held)

    return weighed(max(WEIGHTS, key=value))
