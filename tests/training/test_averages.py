"""Averages of weights and cut gradients: by the slow way, and after a stop."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from small import board, networks, same, short

import longtail as lt
from longtail.training.loop import Loop

pytestmark = pytest.mark.usefixtures("one_thread")  # bit-equal


class Stop(Exception):
    pass


def test_served_weights_are_the_mean_of_those_after_the_last_epochs():
    recipe = short("xmlcnn", training__epochs=6, training__average=0.5)
    ends, real = [], Loop._average

    def average(self, epochs):
        ends.append({name: value.clone() for name, value in self._weights().items()})
        real(self, epochs)

    with patch.object(Loop, "_average", average):
        network = networks(recipe, board(), run=True)["training"]
    words = network.tables["words"].values
    expected = torch.stack([end["table.words"] for end in ends[3:]]).mean(dim=0)
    assert len(ends) == 6
    torch.testing.assert_close(words, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(words, ends[-1]["table.words"])


@pytest.mark.parametrize("more", [{"training__average": 0.3}, {"training__clip": 1.5}, {"training__patience": 3}])
@pytest.mark.parametrize("step", [3, 9, 11])
def test_a_stopped_run_ends_with_the_same_averages(more, step, tmp_path):
    settings = {"training__epochs": 4, "training__average": 0.3, "training__save_seconds": 0} | more
    recipe = short("attentionxml", sampler__levels=[], **settings)

    def watch(_name, done, _total):
        if done == step:
            raise Stop

    whole = lt.fit(recipe, board(), scratch=tmp_path / "whole")
    with pytest.raises(Stop):
        lt.fit(recipe, board(), scratch=tmp_path / "broken", progress=watch)
    assert same(lt.fit(recipe, board(), scratch=tmp_path / "broken"), whole)
    assert same(lt.fit(recipe, board(), scratch=tmp_path / "whole"), whole)  # a finished run is only read


def test_a_gradient_is_cut_where_it_is_far_longer_than_the_last_ones():
    network = networks(short("attentionxml", sampler__levels=[]), board())["training"]
    loop = Loop(network, network.settings)
    parts = list(network.dense.parameters())

    def clipped(length: float) -> float:
        for part in parts:
            part.grad = torch.zeros_like(part)
        parts[0].grad.view(-1)[0] = length
        loop._clip(2.0)
        return math.sqrt(sum(float(part.grad.square().sum()) for part in parts))

    assert clipped(100.0) == 100  # there is nothing to compare with
    loop.norms.clear()
    assert clipped(0.0) == 0
    assert not loop.norms  # nothing could grow from that
    assert [clipped(length) for length in (1.0, 1.5, 9.0, 9.0)] == pytest.approx([1.0, 1.5, 3.0, 6.0])
    assert list(loop.norms) == pytest.approx([1.0, 1.5, 3.0, 6.0])
    for _ in range(5):
        clipped(1.0)
    assert clipped(9.0) == pytest.approx(2.0)


def test_rows_of_tables_count_too():
    network = networks(short("attentionxml", sampler__levels=[]), board())["training"]
    loop = Loop(network, network.settings)
    network.loss(np.arange(8), np.random.default_rng(0)).backward()
    grads = [part.grad for part in network.dense.parameters() if part.grad is not None]
    grads += [part for table in network.tables.values() for part in table.gradients()]
    length = math.sqrt(sum(float(part.square().sum()) for part in grads))
    loop.norms.append(length / 8)
    loop._clip(2.0)
    assert math.sqrt(sum(float(part.square().sum()) for part in grads)) == pytest.approx(length / 4, rel=1e-4)
