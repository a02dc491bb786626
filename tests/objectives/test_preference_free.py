"""Losses without a reference, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lydian.objectives.preference_free import chosen_nll, cpo, orpo, simpo

PAIR, CHOSEN = torch.zeros(2), torch.tensor([1.0, 0.0])
IDS = torch.tensor([0, 0, 1, 1, 1])
MEANS = torch.tensor([-0.5, -1.5, -1.0, -1.5, -2.0])  # means −1 and −1.5, sums −2 and −4.5


def test_simpo_by_hand():
    """β = 2, γ = .5, means −1.0/−1.5: 2·.5 − .5 = .5, −log σ(.5) = .4741, and no likelihood term beside it."""
    loss, statistics = simpo(MEANS, IDS, PAIR, CHOSEN, beta=2.0, target_margin=0.5)
    torch.testing.assert_close(loss, torch.full((5,), 0.4741), atol=5e-5, rtol=0)
    assert {name: round(values[0].item(), 4) for name, values in statistics.items()} == {
        "reward_chosen": -2.0,
        "reward_rejected": -3.0,
        "margin": 1.0,
        "preference_accuracy": 1.0,
        "chosen_logprobs": -2.0,
        "rejected_logprobs": -4.5,
    }


def test_orpo_by_hand():
    """p̄ −.5/−1: log-odds −.5 − log(1 − e^−.5) = .43275, −1 − log(1 − e^−1) = −.54132; difference .9741, −log σ .3203.
    λ = .1: .5 + .03203."""
    ids, logprobs = torch.tensor([0, 0, 1]), torch.tensor([-0.25, -0.75, -1.0])
    loss, statistics = orpo(logprobs, ids, PAIR, CHOSEN, odds_coef=0.1)
    assert loss[2].item() == pytest.approx(0.53203, abs=1e-5)
    assert statistics["margin"][0].item() == pytest.approx(0.09741, abs=1e-5)
    assert statistics["chosen_nll"][2].item() == 0.5


def test_orpo_near_probability_one():
    """p̄ = −1e-7: log-odds −1e-7 − log(1e-7) = 16.118; 1 − e^p̄ in fp32 would be off by a fifth of that digit."""
    x = torch.tensor([-1e-7, -math.log(2)])  # the rejected reply has odds one, log-odds 0
    _, statistics = orpo(x, torch.tensor([0, 1]), PAIR, CHOSEN, odds_coef=1.0)
    assert statistics["reward_chosen"][0].item() == pytest.approx(16.1181, abs=1e-4)
    assert statistics["reward_rejected"][0].item() == pytest.approx(0, abs=1e-6)


def test_cpo_by_hand():
    """β = .1: sums −2 and −4.5, −log σ(.25) = .5759; likelihood, the mean a chosen token, 1. c = 0 leaves it out."""
    preference = math.log(1 + math.exp(-0.25))
    assert cpo(MEANS, IDS, PAIR, CHOSEN, beta=0.1).loss[4].item() == pytest.approx(preference + 1)
    assert cpo(MEANS, IDS, PAIR, CHOSEN, beta=0.1, nll_coef=0.0).loss[4].item() == pytest.approx(preference)


def test_chosen_nll_counts_a_pair_once():
    """Mean of the chosen tokens, at all five sites; with weights 1/5 its gradient is −½ a chosen token."""
    x = MEANS.clone().requires_grad_()
    loss, statistics = chosen_nll(x, IDS, PAIR, CHOSEN)
    assert loss.tolist() == [1.0] * 5 == statistics["chosen_nll"].tolist()
    (loss / 5).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([-0.5, -0.5, 0.0, 0.0, 0.0]))
