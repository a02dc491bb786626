"""PTX: the gradient is the objective's plus that of the text, texts come in turn, and a resumed walk goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lydian.data.sequence import Sequence
from lydian.errors import RecipeError
from lydian.models.policy import Policy
from lydian.objectives.likelihood import nll
from lydian.objectives.policy_gradient import reinforce
from lydian.training.learner import Batching, Learner
from lydian.training.optim import OptimiserSettings
from lydian.training.pretraining_mix import PretrainingMix
from lydian.training.terms import PretrainingLoss
from tests.training.toys import llama, sequence

TEXTS = [sequence(letter, "abc"[: 1 + k % 3], id=f"text {letter}") for k, letter in enumerate("jklmnopq")]


def learner(objective=reinforce) -> Learner:
    return Learner(
        Policy(llama()), objective=objective, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=1e-2)
    )


def mix(*, coef: float = 0.5, batch_size: int = 3, seed: int = 0) -> PretrainingMix:
    settings = PretrainingLoss(coef=coef, data="texts", batch_size=batch_size)
    return PretrainingMix(learner(), TEXTS, settings, seed=seed, batching=Batching())


def sampled(advantage: float) -> list[Sequence]:
    return [replace(sequence("f", "ab"), streams={"advantage": (advantage,) * 4})]


def gradient(trainer: PretrainingMix | Learner, items: list[Sequence]) -> tuple[Tensor, dict[str, float]]:
    statistics = trainer.accumulate(items)
    return torch.cat([p.grad.flatten() for p in trainer.policy.model.parameters() if p.grad is not None]), statistics


def test_the_gradient_is_the_sum():
    """∇(objective) + coef · ∇(mean NLL of a token of the batch), from learners of each alone."""
    mixed = mix(coef=0.5)
    texts = mixed.batch(0)
    found, statistics = gradient(mixed, sampled(1.0))
    own, _ = gradient(learner(), sampled(1.0))
    read, alone = gradient(learner(nll), texts)
    torch.testing.assert_close(found, own + 0.5 * read, atol=1e-7, rtol=1e-5)
    assert statistics["ptx_loss"] == pytest.approx(alone["loss"], rel=1e-6)


def test_text_trains_where_the_samples_have_no_signal():
    """All advantages 0: the step is the text's."""
    mixed = mix()
    before = mixed.weights().digest
    mixed.accumulate(sampled(0.0))
    assert mixed.step(0.0)["gradient_norm"] > 0
    assert mixed.weights().digest != before


def test_every_text_stands_once_in_an_order_and_orders_differ():
    """Eight texts, three a step: orders of 3 3 2."""
    mixed = mix()
    orders = [[item.id for k in range(3) for item in mixed.batch(3 * order + k)] for order in range(3)]
    assert all(sorted(order) == sorted(text.id for text in TEXTS) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [item.id for item in mix(seed=1).batch(0)] != [item.id for item in mixed.batch(0)]
    assert len(mix(batch_size=99).batch(5)) == 8


def test_a_resumed_walk_goes_on():
    whole, first, second = mix(), mix(), mix()
    for trainer, num in ((whole, 4), (first, 2)):
        for _ in range(num):
            trainer.accumulate(sampled(1.0))
            trainer.step(0.0)
    second.load_state(first.state())
    for _ in range(2):
        second.accumulate(sampled(1.0))
        second.step(0.0)
    assert second.weights().digest == whole.weights().digest


@pytest.mark.parametrize("wrong", [{"coef": 0.0}, {"batch_size": 0}])
def test_settings_out_of_range_are_refused_by_name(wrong: dict):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        PretrainingLoss(**{"coef": 1.0, "data": "texts"} | wrong)


def test_no_texts_are_refused():
    with pytest.raises(ValueError, match="no texts"):
        PretrainingMix(learner(), [], PretrainingLoss(coef=1.0, data="x"), seed=0, batching=Batching())
