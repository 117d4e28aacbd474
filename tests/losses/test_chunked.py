"""Cross-entropy over all labels in chunks: the same values and gradients as of all scores at once, and less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longtail.losses.bce import Bce
from longtail.losses.chunked import ChunkedBce
from longtail.parts import Factors

B, K, D = 5, 12, 4


def case(seed: int = 0, shape: tuple[int, int] = (B, K)):
    """Draw vectors, rows and a bias, soft targets, excluded pairs, and weights of which one is zero."""
    draw = np.random.default_rng(seed)
    points, labels = shape
    targets = draw.choice([0.0, 0.0, 0.0, 0.4, 1.0], shape)
    targets[0] = 0
    excluded = (draw.random(shape) < 0.2) * (targets == 0) * 1.0
    weights = draw.random(points)
    weights[1] = 0
    leaves = [draw.normal(size=size) for size in ((points, D), (labels, D), labels)]
    return [torch.from_numpy(leaf) for leaf in leaves], targets, excluded, torch.from_numpy(weights)


def in_chunks(chunk: int, leaves, targets, excluded, weights):
    targets, excluded = (sp.csr_array(part.astype(np.float32)) for part in (targets, excluded))
    return ChunkedBce(chunk=chunk).of_rows(Factors(*leaves), targets, excluded, weights)


def at_once(leaves, targets, excluded, weights):
    vectors, rows, *bias = leaves
    targets = torch.from_numpy(targets.astype(np.float32)).double()  # as it is stored
    return Bce()(vectors @ rows.T + sum(bias), targets, torch.from_numpy(excluded == 0), weights)


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("chunk", [1, 4, 5, 11, 12, 99])
def test_chunks_add_up_to_the_whole(chunk, biased):
    leaves, *rest = case()
    results = []
    for compute in (lambda some: in_chunks(chunk, some, *rest), lambda some: at_once(some, *rest)):
        own = [leaf.clone().requires_grad_() for leaf in leaves[: 2 + biased]]
        value = compute(own)
        (3 * value).backward()  # what comes from above counts
        results.append([value.detach(), *(leaf.grad for leaf in own)])
    assert len(results[0]) == 3 + biased
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
    assert all(gradient.abs().sum() > 0 for gradient in results[0][1:])
    assert (results[0][1][1] == 0).all()  # the point without weight


def test_of_scores_it_is_cross_entropy_as_ever():
    scores, targets, mask = torch.randn(2, 3), torch.eye(2, 3), torch.tensor([[True, False, True]] * 2)
    assert ChunkedBce()(scores, targets, mask, torch.ones(2)) == Bce()(scores, targets, mask, torch.ones(2))


def test_extreme_scores_and_no_pairs_at_all_stay_finite():
    leaves = [torch.full((2, D), 1e3), torch.full((3, D), -1e3), torch.zeros(3)]
    for leaf in leaves:
        leaf.requires_grad_()
    nothing = np.zeros((2, 3))
    for targets, excluded in ((nothing + 1, nothing), (nothing, nothing + 1)):
        value = in_chunks(2, leaves, targets, excluded, torch.ones(2))
        value.backward()
        assert torch.isfinite(value) and all(torch.isfinite(leaf.grad).all() for leaf in leaves)
        assert (float(value.detach()) == 0) == bool(excluded.all())


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(part.shape) for part in (out if isinstance(out, tuple) else (out,)) if part is not None}
        return out


def test_no_matrix_of_all_scores_is_ever_held(monkeypatch):
    points, labels, chunk = 32, 100, 8
    leaves, *rest = case(shape=(points, labels))
    for leaf in leaves:
        leaf.requires_grad_()
    laid_out, real = [], sp.csc_array.toarray
    monkeypatch.setattr(
        sp.csc_array, "toarray", lambda self, *more, **named: laid_out.append(self.shape) or real(self, *more, **named)
    )
    with Shapes() as watched:
        in_chunks(chunk, leaves, *rest).backward()
    assert (points, chunk) in watched.shapes and (points, labels % chunk) in watched.shapes
    assert max(int(np.prod(shape)) for shape in watched.shapes) == labels * D < points * labels
    assert len(laid_out) == 2 * 13 and max(columns for _, columns in laid_out) == chunk
    with Shapes() as whole:
        at_once(leaves, *rest).backward()
    assert (points, labels) in whole.shapes  # it would have been seen
