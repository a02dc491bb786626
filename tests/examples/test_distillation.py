"""The flat script is the rows `distil` and `distil_reverse`."""

from __future__ import annotations

import random

import pytest

from examples import distillation
from lydian.data.sequence import Sequence
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.training.collect import Corpus, permutation
from tests.examples.rows import RATE, STOP, assert_equal, ids, run_row, settings_of
from tests.models.families import VOCABULARY, make


@pytest.mark.parametrize("row", ["distil", "distil_reverse"])
def test_equals_the_row(row: str):
    """Two epochs of two steps; replies of one to eight tokens, so that a mean of means would be another number."""
    rng = random.Random(0)
    rows = [(ids(rng, 3 + k % 2), (*ids(rng, k), STOP)) for k in range(8)]
    items = [
        Sequence(id=str(k), group=str(k), tokens=x + y, trained=(False,) * len(x) + (True,) * len(y))
        for k, (x, y) in enumerate(rows)
    ]
    teacher = Teacher(policy=Policy(make("llama", seed=1).requires_grad_(False)), num_tokens=VOCABULARY)
    journal, theirs = run_row(row, Corpus(items), settings_of(row, batch_size=4, epochs=2), teacher)
    order = [[rows[i] for i in permutation(8, 0, 0, epoch)] for epoch in range(2)]
    batches = [epoch[start : start + 4] for epoch in order for start in (0, 4)]
    student, divergence = make("llama"), {"distil": "forward_kl", "distil_reverse": "reverse_kl"}[row]
    steps = distillation.train(
        student,
        make("llama", seed=1),
        batches,
        divergence=getattr(distillation, divergence),
        peak_rate=RATE,
    )
    assert_equal(list(steps), journal.metrics, student, theirs)


def test_loss_by_hand():
    """A student that gives every token 1/97 is log 97 nats, less the teacher's entropy, from any teacher; from one that
    is uniform too it is 0."""
    student, teacher = make("llama"), make("llama", seed=1)
    student.lm_head.weight.data.zero_()
    teacher.lm_head.weight.data.zero_()
    (metrics,) = distillation.train(student, teacher, [[((5, 6), (7, STOP))]], peak_rate=0.0)
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)
    teacher.lm_head.weight.data += 100 * make("llama", seed=1).lm_head.weight.data  # nearly certain: entropy 0
    (metrics,) = distillation.train(student, teacher, [[((5, 6), (7, STOP))]], peak_rate=0.0)
    assert metrics["loss"] == pytest.approx(4.5747, abs=1e-2)
