"""Losses that keep length apart from quality, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lydian.objectives.preference import dpo
from lydian.objectives.preference_length import dpo_normalised, ld_dpo, r_dpo

PAIR, CHOSEN = torch.zeros(2), torch.tensor([1.0, 0.0])
LENGTHS = torch.tensor([0] * 10 + [1] * 100)


def spread(chosen: float, rejected: float) -> torch.Tensor:
    """These sums over 10 chosen and 100 rejected tokens."""
    return torch.tensor([chosen / 10] * 10 + [rejected / 100] * 100)


def test_normalising_turns_the_length_example():
    """Sums −12 and −100, reference −15 and −110, lengths 10 and 100, β = .1. Raw: 3 − 10 = −7, −log σ(−.7) = 1.1032.
    Means: .3 − .1 = +.2, −log σ(.02) = .6832 (β applies). Penalty α = .01: .02 + .01·(10 − 100) = −.88."""
    facts = spread(-12, -100), spread(-15, -110), LENGTHS, PAIR, CHOSEN
    assert dpo(*facts, beta=0.1).loss[0].item() == pytest.approx(1.1032, abs=5e-5)
    loss, statistics = dpo_normalised(*facts, beta=0.1)
    assert loss[0].item() == pytest.approx(0.6832, abs=5e-5)
    assert statistics["margin"][0].item() == pytest.approx(0.02)
    penalised = dpo_normalised(*facts, beta=0.1, length_penalty=0.01)
    assert penalised.loss[0].item() == pytest.approx(math.log(1 + math.exp(0.88)))


def test_r_dpo_is_solved_by_the_penalised_optimum():
    """E[r − α|y|] − β KL is maximal at log π − log π_reference = (r − α|y|)/β + constant. With r = 1.5, .5, lengths 10
    and 100, α = .02, β = .5: Δ = (1.3, −1.5)/.5 = 2.6, −3. The loss's own margin must then be r_w − r_l = 1."""
    facts = spread(2.6 - 20, -3 - 20), spread(-20, -20), LENGTHS, PAIR, CHOSEN
    loss, statistics = r_dpo(*facts, beta=0.5, length_penalty=0.02)
    assert statistics["margin"][0].item() == pytest.approx(1.0, abs=1e-4)
    assert loss[0].item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-4)


@pytest.mark.parametrize("loss", [r_dpo, dpo_normalised])
def test_a_longer_chosen_reply_is_pushed_less(loss):
    """That is what a penalty on length is for; with the other sign it would be pushed more."""
    ids, slopes = torch.tensor([0, 0, 0, 1]), []
    for length_penalty in (0.0, 0.5):
        x = torch.full((4,), -1.0, requires_grad=True)
        loss(x, torch.full((4,), -1.0), ids, PAIR, CHOSEN, length_penalty=length_penalty).loss[0].backward()
        assert x.grad is not None
        slopes.append(x.grad[0].abs().item())
    assert slopes[1] < 0.6 * slopes[0]  # σ(−1) = .27 instead of ½


def test_ld_dpo_counts_the_excess_less():
    """Sites interleaved. Chosen d = (1, 2, 4), rejected (1): m = 1. α = .5: 1 + 3 − 1 = 3; α = 1: DPO's 6; α = 0: 0."""
    ids, ratios = torch.tensor([0, 1, 0, 0]), torch.tensor([1.0, 1.0, 2.0, 4.0])
    for alpha, difference in ((0.5, 3.0), (1.0, 6.0), (0.0, 0.0)):
        got = ld_dpo(ratios - 5, torch.full((4,), -5.0), ids, PAIR, CHOSEN, beta=0.1, alpha=alpha)
        assert got.loss[0].item() == pytest.approx(math.log(1 + math.exp(-0.1 * difference)))


def test_ld_dpo_shortens_the_rejected_reply_too():
    """Chosen (1), rejected (1, 2): α = .5 gives 1 − (1 + 1) = −1; the chosen reply is whole."""
    got = ld_dpo(
        torch.tensor([-4.0, -4.0, -3.0]), torch.full((3,), -5.0), torch.tensor([0, 1, 1]), PAIR, CHOSEN, beta=1.0
    )
    assert got.statistics["margin"][0].item() == -1
    assert got.statistics["rejected_logprobs"][0].item() == -7
