"""The flat script is the row `sft`."""

from __future__ import annotations

import random

import pytest

from examples import sft
from lydian.data.sequence import Sequence
from lydian.training.collect import Corpus, permutation
from tests.examples.rows import RATE, STOP, assert_equal, ids, run_row, settings_of
from tests.models.families import make


def test_equals_the_row():
    """Two epochs of two steps; replies of one to eight tokens, so that a mean of means would be another number."""
    rng = random.Random(0)
    rows = [(ids(rng, 3 + k % 2), (*ids(rng, k), STOP)) for k in range(8)]
    items = [
        Sequence(id=str(k), group=str(k), tokens=x + y, trained=(False,) * len(x) + (True,) * len(y))
        for k, (x, y) in enumerate(rows)
    ]
    journal, theirs = run_row("sft", Corpus(items), settings_of("sft", batch_size=4, epochs=2))
    order = [[rows[i] for i in permutation(8, 0, 0, epoch)] for epoch in range(2)]
    batches = [epoch[start : start + 4] for epoch in order for start in (0, 4)]
    model = make("llama")
    assert_equal(list(sft.train(model, batches, peak_rate=RATE)), journal.metrics, model, theirs)


def test_loss_by_hand():
    """A model that gives every token 1/97 has a loss of log 97 = 4.5747 nats a token, whatever the rows."""
    model = make("llama")
    model.lm_head.weight.data.zero_()
    (metrics,) = sft.train(model, [[((5, 6), (7, STOP)), ((5,), (8, 9, 10, STOP))]], peak_rate=0.0)
    assert metrics["loss"] == pytest.approx(4.5747, abs=1e-4)
