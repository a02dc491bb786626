"""Before the first step nothing may have happened yet: what every row must show on the bundled model, to the digit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lydian.data.arithmetic import arithmetic_preferences, arithmetic_problems
from lydian.data.forest import plant, sequences_of, site_weights
from lydian.data.trajectory import Sampling
from lydian.models.adapters import AdapterSettings
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.objectives.advantage import raw_reward
from lydian.objectives.policy_gradient import clip
from lydian.rollout.local import LocalEngine
from lydian.text.encode import encode_items
from lydian.text.template import make_template
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Rollouts
from lydian.training.credit import PolicyGradient
from lydian.training.learner import Learner, required_names
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import KLInLoss
from lydian.verifiers import make_verifier

LOADED = load_model("tiny")
TEMPLATE = make_template("plain", LOADED.tokenizer, prompt="{question}\nSteps:")
PAIRS = encode_items(arithmetic_preferences(num=8), TEMPLATE)
WITH_REFERENCE = [
    name
    for name, row in ALGORITHMS.items()
    if row.data == "preferences" and "reference_logprobs" in required_names(row.objective)
]
VALUE = {
    "dpo": math.log(2),
    "cdpo": math.log(2),
    "robust_dpo": math.log(2),
    "f_dpo": math.log(2),
    "aot_unpaired": math.log(2),
    "bco": math.log(2),
    "hinge": 1.0,
    "ipo": 25.0,
    "ipo_mean": 25.0,
    "sppo": 50.0,
    "apo_zero": 1.0,
    "apo_down": 1.0,
    "nca": 2 * math.log(2),
    "kto": 0.5,
}
"""Losses at log-ratios of zero, from their equations with the default β = 0.1: ipo (0 − 1/(2β))² = 25, sppo twice that,
apo_zero 1 − σ(0) + σ(0), apo_down σ(0) + 1 − σ(0), nca −log σ(0) − ½ log σ(0) − ½ log σ(0), kto 1 − σ(0)."""


def learner(name: str) -> Learner:
    row = ALGORITHMS[name]
    return Learner(
        Policy(LOADED.model),
        objective=row.objective,
        normaliser=row.defaults["normaliser"],
        optimiser=OptimiserSettings(learning_rate=1e-4),
    )


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_policy_and_reference_are_one(name: str):
    statistics = learner(name).accumulate(PAIRS)
    LOADED.model.zero_grad()
    rewards = ("reward", "reward_chosen", "reward_rejected", "dpo_reward_chosen")
    for key in rewards if name != "r_dpo" else ():  # its rewards hold the penalty on length as well
        assert statistics.get(key, 0.0) == pytest.approx(0.0, abs=2e-5), key
    if name in VALUE:
        assert statistics["loss"] == pytest.approx(VALUE[name], abs=1e-4)


def test_every_loss_with_a_known_start_was_looked_at():
    assert VALUE.keys() <= set(WITH_REFERENCE)


def test_on_policy_the_ratio_is_one_and_the_kl_zero():
    """Samples at temperature 0.7, trained at 0.7: no gap, no clipping, no KL to the proximal or reference policy."""
    engine = LocalEngine.of("tiny", TEMPLATE)
    source = Rollouts(
        engine=engine,
        template=TEMPLATE,
        verifier=make_verifier("gsm8k"),
        problems=arithmetic_problems(num=4, split="train"),
        sampling=Sampling(temperature=0.7, max_tokens=24),
        num_samples=2,
        problems_per_round=0,
        credit=PolicyGradient(advantage=raw_reward),
        seed=0,
    )
    trainer = Learner(
        Policy(LOADED.model),
        objective=clip,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-4),
        kl=KLInLoss(coef=0.1),
    )
    statistics = trainer.accumulate(source.assign(source.collect(0).items))
    LOADED.model.zero_grad()
    assert statistics["ratio"] == 1.0
    assert statistics["clipped_low"] == statistics["clipped_high"] == 0.0
    assert statistics["kl_k1"] == statistics["kl_k3"] == 0.0
    assert statistics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert statistics["behaviour_gap"] < 1e-4
    assert statistics["behaviour/weight_mean"] == pytest.approx(1.0, abs=1e-4)
    assert statistics["behaviour/ess"] == pytest.approx(1.0, abs=1e-4)


def logprobs(policy: Policy, layout: str) -> dict[str, Tensor]:
    """By sequence id."""
    found: dict[str, Tensor] = {}
    for forest in plant(PAIRS, site_weights(PAIRS, "pair_mean"), layout=layout):
        with torch.no_grad():
            values = policy.logprobs(forest)[0]
        found |= {name: values[forest.sites.sequence == k] for k, name in enumerate(forest.sequence_ids)}
    return found


@pytest.mark.parametrize("layout", ["packed", "shared"])
def test_packing_and_sharing_change_nothing(layout: str):
    policy = Policy(LOADED.model)
    alone, together = logprobs(policy, "single"), logprobs(policy, layout)
    for sequence in sequences_of(PAIRS):
        torch.testing.assert_close(together[sequence.id], alone[sequence.id], atol=5e-5, rtol=0)


def test_a_fresh_adapter_is_the_base():
    adapted = load_model("tiny", adapter=AdapterSettings(rank=4, alpha=8.0))
    base, with_adapter = logprobs(Policy(LOADED.model), "single"), logprobs(Policy(adapted.model), "single")
    for name, values in base.items():
        torch.testing.assert_close(with_adapter[name], values, atol=0, rtol=0)
