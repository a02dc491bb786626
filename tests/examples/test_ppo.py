"""The flat script is the row `ppo`."""

from __future__ import annotations

import random

import pytest
import torch

from examples import ppo
from lydian.data.trajectory import Sampling
from lydian.rollout.local import LocalEngine
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import CriticSettings, KLInReward
from tests.examples.rows import RATE, STOP, Numbers, assert_equal, ids, problem, rollouts, run_row, settings_of
from tests.models.families import make

TEMPERATURE = 0.7
STOPS = frozenset({STOP, 3, 4, 5, 6, 7})


@pytest.mark.parametrize(("rounds", "epochs"), [(3, 1), (2, 3)])
def test_equals_the_row(rounds: int, epochs: int):
    """Steps on the samples of the library's own engine: each on fresh ones, or three on the same, where ratios differ
    from 1 and values from the old ones; some completions end by themselves and some are cut off. From the second round
    on values are not 0 and the policy is not its reference."""
    rng = random.Random(0)
    problems = [problem(str(k), ids(rng, 3 + k % 3)) for k in range(4 * rounds)]
    settings = settings_of(
        "ppo",
        rounds=rounds,
        epochs=epochs,
        batch_size=0,
        problems_per_round=4,
        num_samples=4,
        kl=KLInReward(place="reward", coef=ppo.KL_COEF),
        critic=CriticSettings(optimiser=OptimiserSettings(learning_rate=RATE)),
    )
    engine = LocalEngine(make("llama"), stop_tokens=STOPS, decode=Numbers().decode)
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=12)
    journal, theirs = run_row("ppo", rollouts("ppo", engine, problems, settings, sampling), settings)
    ends = [
        completion[-1] in STOPS
        for groups in journal.rounds
        for _, completions, _ in groups
        for completion in completions
    ]
    assert 0.1 < sum(ends) / len(ends) < 0.9, "both true ends and truncated completions, or a bootstrap would not show"
    model = make("llama")
    steps = ppo.train(
        model,
        journal.rounds.__getitem__,
        rounds=rounds,
        rate=RATE,
        temperature=TEMPERATURE,
        stops=STOPS,
        epochs=epochs,
    )
    mine = list(steps)
    assert [m["value_loss"] for m in mine] == pytest.approx([m["value_loss"] for m in journal.metrics], rel=1e-4)
    assert_equal(mine, journal.metrics, model, theirs)
    assert abs(journal.metrics[-1]["kl_reference"]) > 1e-5 and abs(journal.metrics[-1]["explained_variance"]) > 1e-5


def test_advantages_by_hand():
    """R = 0 0 1, V = .5 .6 .7: published numbers; and a truncated one with V = .8 behind it, worked out in
    tests/training/test_credit_critic.py."""
    value = torch.tensor([0.5, 0.6, 0.7])
    assert ppo.advantages(torch.tensor([0.0, 0.0, 1.0]), value, 0.0).tolist() == pytest.approx([0.46575, 0.385, 0.3])
    assert ppo.advantages(torch.zeros(3), value, 0.8).tolist() == pytest.approx([0.28525, 0.195, 0.1])
