"""How many positives of a point are in the pool of its batch (UniDEC, figure 2.2b).

Batches of DePSL as it draws them before its first step: similar points together, β positives and η mined negatives
drawn for each; beside them batches of points in any order.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from figure_common import CAUTION, paragraph, verdict, write_page

from longtail.bench.changes import find_data
from longtail.data.dataset import Split
from longtail.data.formats import load
from longtail.data.tokens import Words
from longtail.parts import Fit, Step
from longtail.recipe import find_recipe
from longtail.training.learn import as_numbers
from longtail.training.network import TrainedNetwork
from longtail.training.orders import Shuffled

BETAS, ETAS = (1, 2, 3, 5), (0, 3, 6, 12)


class Drawn(NamedTuple):
    """What the batches of one epoch had on average."""

    similar: bool
    beta: int
    eta: int
    positives: float  # of a point in the pool of its batch
    pool: float


def write_positives(args: argparse.Namespace, command: str) -> None:
    """Draw an epoch of batches for each setting and write the page."""
    train = load(find_data(args.data)).train
    write_page(args.out, command, positives_page(train, list(drawn(train, args.batch))))


def drawn(train: Split, batch_size: int) -> Iterator[Drawn]:
    """Draw an epoch of batches for each setting; the network is built once."""
    recipe = find_recipe("depsl")
    words = Words.fit(train.need_texts("batches"), train.labels.texts or [])
    tokenizer = recipe.encoder.tokenizer(train.need_texts("batches"), train.labels.texts, words)
    fit = Fit(recipe, train, None, words, tokenizer, as_numbers(recipe.encoder, tokenizer, train))
    settings: Any = replace(recipe.stages[0], batch_size=batch_size)
    network = TrainedNetwork(fit, recipe.objectives, settings)
    pool = replace(recipe.objectives[0].sampler, mined=5 * max(ETAS), hard=max(ETAS))
    mining: Any = network.terms[0].sampler
    mining.settings = pool
    network.on_epoch(0)
    for order in (network.order, Shuffled().build(fit, batch_size)):
        for beta, eta in ((beta, eta) for beta in BETAS for eta in ETAS):
            mining.settings = replace(pool, positives=beta, hard=eta)
            draw = np.random.default_rng([fit.seed, beta, eta])
            rows, counts, sizes = order.rows(0, draw), [], []
            for start in range(0, len(rows), batch_size):
                batch = fit.points.take(rows[start : start + batch_size])
                labels = mining.propose(batch, None, Step(draw, 0.0, network, ())).labels
                counts.append(np.isin(batch.targets.indices, labels).sum() / len(batch.inputs))
                sizes.append(len(labels))
            yield Drawn(order is network.order, beta, eta, float(np.mean(counts)), float(np.mean(sizes)))


def positives_page(train: Split, rows: list[Drawn]) -> list[str]:
    """Write the page."""
    found = {(row.similar, row.beta, row.eta): row for row in rows}
    own = np.diff(train.targets.indptr)
    each = float(own.mean())
    more = all(found[True, b, e].positives > np.minimum(own, b).mean() for b in (2, 3) for e in ETAS)
    similar = all(found[True, b, e].positives >= found[False, b, e].positives for b in BETAS for e in ETAS)
    growing = all(
        found[True, b, e].positives <= found[True, b, more_of].positives
        for b in BETAS for e, more_of in itertools.pairwise(ETAS)
    )  # fmt: skip
    out = [
        "# Positives in the pool of a batch", "",
        *paragraph(
            f"As in figure 2.2b of the UniDEC thesis: {train.dataset} has {each:.2f} labels a point, of which at most "
            "β are drawn for each point and step, with η negatives that the encoder finds at its start. Whatever else "
            f"of a point's labels is in the pool, drawn for a neighbour or mined for one, counts too. {CAUTION}"
        ), "",
        "| β | η | positives of a point, similar points together | labels in the pool | positives, any order | pool |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {b} | {e} | {one.positives:.2f} | {one.pool:,.0f} | {other.positives:.2f} | {other.pool:,.0f} |"
            for b in BETAS for e in ETAS for one, other in [(found[True, b, e], found[False, b, e])]
        ), "",
        f"- More positives are in the pool than were drawn for a point (β of 2 and 3): {verdict(more)}.",
        f"- Similar points together bring more of them than any order: {verdict(similar)}.",
        f"- Mined negatives of some are positives of others, so that η adds positives: {verdict(growing)}.",
    ]  # fmt: skip
    return out
