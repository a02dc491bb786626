"""The flat script is the row `expert_iteration`."""

from __future__ import annotations

import inspect
import random

import pytest

from examples import expert_iteration, grpo
from lydian.data.trajectory import Sampling
from lydian.rollout.scripted import ScriptedEngine
from lydian.training import loop
from tests.examples.rows import RATE, STOP, assert_equal, ids, problem, rollouts, run_row, settings_of
from tests.models.families import make


def test_equals_the_row(monkeypatch: pytest.MonkeyPatch):
    """Three rounds of several steps, with the library's shuffle of a round set aside. Each problem's samples hold a
    repeated one and more correct ones than are kept."""
    monkeypatch.setattr(loop, "permutation", lambda num, *parts: range(num))
    rng = random.Random(0)
    problems = [problem(str(k), ids(rng, 3 + k % 2)) for k in range(9)]
    script = {}
    for k, asked in enumerate(problems):
        samples = [(*ids(rng, 1 + (j + k) % 6), STOP) for j in range(7)]
        script[asked.id] = [samples[0], *samples]
    settings = settings_of(
        "expert_iteration", rounds=3, batch_size=4, problems_per_round=3, num_samples=8, keep_per_problem=2
    )
    engine = ScriptedEngine(script, stop_tokens=frozenset({STOP}))
    source = rollouts("expert_iteration", engine, problems, settings, Sampling(max_tokens=8))
    journal, theirs = run_row("expert_iteration", source, settings)
    assert len(journal.metrics) > len(journal.rounds)
    model = make("llama")
    steps = expert_iteration.train(model, journal.rounds.__getitem__, rounds=3, keep=2, batch_size=4, peak_rate=RATE)
    assert_equal(list(steps), journal.metrics, model, theirs)


def test_selection_by_hand():
    """Correct are a, a, b, c: a once, then b, and c is one too many; the wrong d never."""
    a, b, c, d = (7, STOP), (8, STOP), (9, STOP), (10, STOP)
    groups = [((5,), [d, a, a, b, c], [0.0, 1.0, 1.0, 1.0, 1.0]), ((6,), [d], [0.0])]
    assert expert_iteration.select(groups, keep=2) == [((5,), a), ((5,), b)]


def test_sampling_is_that_of_the_other_script():
    """It is tested there."""
    assert inspect.getsource(expert_iteration.sample) == inspect.getsource(grpo.sample)
