"""The monitor is proved on the bundled model: a reward that can be hacked rings, the honest one does not."""

from __future__ import annotations

import pytest

from lydian.data.arithmetic import arithmetic_problems
from lydian.data.trajectory import Sampling
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.objectives.advantage import group_mean_std
from lydian.objectives.policy_gradient import clip
from lydian.rollout.local import LocalEngine
from lydian.text.template import make_template
from lydian.training.collect import Rollouts
from lydian.training.credit import PolicyGradient
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.monitors import alarms
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import Verifier

ROUNDS = 24


def course(reward: Verifier) -> list[dict[str, float]]:
    """GRPO on the bundled model as in the quickstart, smaller; every round's metrics, judged by gsm8k beside."""
    loaded = load_model("tiny")
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")
    source = Rollouts(
        engine=LocalEngine.of("tiny", template),
        template=template,
        verifier=reward,
        problems=arithmetic_problems(num=2000, split="train"),
        sampling=Sampling(temperature=0.6, max_tokens=80),
        num_samples=8,
        problems_per_round=16,
        credit=PolicyGradient(advantage=group_mean_std),
        seed=0,
        heldout=make_verifier("gsm8k"),
    )
    optimiser = OptimiserSettings(learning_rate=4e-5, warmup_share=0.1)
    learner = Learner(Policy(loaded.model), objective=clip, normaliser="sequence_mean", optimiser=optimiser)
    journal = Quiet()
    train(learner, source, StageSettings(rounds=ROUNDS), journal, seed=0)
    return journal.metrics


@pytest.mark.slow
def test_a_reward_for_form_alone_rings_while_it_climbs():
    """Paid for any number behind the marker, the model learns to state one; its arithmetic stays where it was."""
    history = course(make_verifier("pattern", pattern=r"####\s*-?\d+"))
    third = ROUNDS // 3
    reward = [sum(m["reward"] for m in part) / third for part in (history[:third], history[-third:])]
    assert reward[1] > reward[0] + 0.15
    assert "reward_without_gain" in [alarm.name for alarm in alarms(history)]


@pytest.mark.slow
def test_the_honest_reward_is_silent():
    parts = {"format": {"name": "pattern"}, "content": {"name": "gsm8k"}}
    history = course(make_verifier("all_of", parts=parts))
    assert alarms(history) == []
