"""The flat script is the row `dpo`."""

from __future__ import annotations

import math
import random

import pytest

from examples import dpo
from lydian.data.sequence import Pair, Sequence
from lydian.training.collect import Corpus, permutation
from tests.examples.rows import RATE, STOP, assert_equal, ids, run_row, settings_of
from tests.models.families import make


def test_equals_the_row():
    """Two epochs of two steps on six pairs of replies of unlike lengths; the first loss is log 2."""
    rng = random.Random(0)
    pairs = [(ids(rng, 3), (*ids(rng, 1 + k), STOP), (*ids(rng, 6 - k), STOP)) for k in range(6)]
    items = []
    for k, (prompt, *replies) in enumerate(pairs):
        sides = [
            Sequence(
                id=f"{k}/{name}",
                group=str(k),
                tokens=prompt + reply,
                trained=(False,) * len(prompt) + (True,) * len(reply),
                facts={"pair": float(k), "is_chosen": float(name == "chosen")},
            )
            for name, reply in zip(("chosen", "rejected"), replies, strict=True)
        ]
        items.append(Pair(chosen=sides[0], rejected=sides[1]))
    journal, theirs = run_row("dpo", Corpus(items), settings_of("dpo", batch_size=3, epochs=2))
    order = [[pairs[i] for i in permutation(6, 0, 0, epoch)] for epoch in range(2)]
    batches = [epoch[start : start + 3] for epoch in order for start in (0, 3)]
    model = make("llama")
    mine = list(dpo.train(model, batches, peak_rate=RATE))
    assert mine[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert mine[-1]["loss"] < math.log(2) - 1e-2
    assert_equal(mine, journal.metrics, model, theirs)
