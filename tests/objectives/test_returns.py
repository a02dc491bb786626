"""Rewards of tokens, returns and GAE against numbers worked by hand and a plain backward loop."""

from __future__ import annotations

import pytest
import torch

from lydian.objectives.returns import discounted_returns, gae, token_rewards
from lydian.objectives.segments import segment_sum

ONE = torch.tensor([0, 0, 0])
ENDED, CUT = torch.zeros(1), torch.ones(1)
REWARD, VALUE = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.6, 0.7])
INTERLEAVED = torch.tensor([2, 0, 2, 0, 2, 1, 2])


def slow_gae(reward, value, sequence, is_truncated, bootstrap_value, discount, gae_lambda):
    """Equation by equation, one token after the other."""
    advantage = [0.0] * len(reward)
    for s in range(len(is_truncated)):
        following, next_value = 0.0, float(bootstrap_value[s]) if is_truncated[s] else 0.0
        for i in reversed([i for i, owner in enumerate(sequence.tolist()) if owner == s]):
            following = float(reward[i]) + discount * next_value - float(value[i]) + discount * gae_lambda * following
            advantage[i], next_value = following, float(value[i])
    return torch.tensor(advantage, dtype=torch.float64)


def test_gae_by_hand():
    """γ = 1, λ = .95. δ = (0 + .6 − .5, 0 + .7 − .6, 1 + 0 − .7) = (.1, .1, .3). A₃ = .3; A₂ = .1 + .95·.3 = .385;
    A₁ = .1 + .95·.385 = .46575. λ = 1: 1 − V. λ = 0: δ."""
    for gae_lambda, expected in ((0.95, [0.46575, 0.385, 0.3]), (1.0, [0.5, 0.4, 0.3]), (0.0, [0.1, 0.1, 0.3])):
        got = gae(REWARD, VALUE, ONE, ENDED, ENDED, discount=1.0, gae_lambda=gae_lambda)
        torch.testing.assert_close(got, torch.tensor(expected))


def test_lambda_one_is_returns_minus_values():
    for is_truncated in (ENDED, CUT):
        returns = discounted_returns(REWARD, ONE, is_truncated, torch.tensor([0.8]), discount=0.9)
        got = gae(REWARD, VALUE, ONE, is_truncated, torch.tensor([0.8]), discount=0.9, gae_lambda=1.0)
        torch.testing.assert_close(got, returns - VALUE)


def test_only_truncated_sequences_bootstrap():
    """r = 1, V = .5, value after the last token .8, γ = 1: ended A = 1 − .5 = .5; cut off A = 1 + .8 − .5 = 1.3."""
    reward, value, ids = torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([0])
    assert gae(reward, value, ids, ENDED, torch.tensor([0.8])).item() == pytest.approx(0.5)
    assert gae(reward, value, ids, CUT, torch.tensor([0.8])).item() == pytest.approx(1.3)
    assert gae(reward, value, ids, ENDED, torch.tensor([torch.nan])).item() == pytest.approx(0.5)
    assert discounted_returns(reward, ids, ENDED, torch.tensor([0.8])).item() == 1
    assert discounted_returns(reward, ids, CUT, torch.tensor([0.8]), discount=0.5).item() == pytest.approx(1.4)


def test_discounted_returns_by_hand():
    """γ = ½: R₃ = 1, R₂ = ½, R₁ = ¼; rewards (1, 2, 4): 4, 2 + 2 = 4, 1 + 2 = 3."""
    assert discounted_returns(REWARD, ONE, ENDED, ENDED, discount=0.5).tolist() == [0.25, 0.5, 1.0]
    assert discounted_returns(torch.tensor([1.0, 2.0, 4.0]), ONE, ENDED, ENDED, discount=0.5).tolist() == [
        3.0,
        4.0,
        4.0,
    ]


def test_interleaved_sequences_of_unlike_length_do_not_mix():
    torch.manual_seed(0)
    reward, value = torch.randn(2, 7, dtype=torch.float64)
    is_truncated, bootstrap = torch.tensor([0.0, 1.0, 1.0]), torch.randn(3, dtype=torch.float64)
    got = gae(reward, value, INTERLEAVED, is_truncated, bootstrap, discount=0.9, gae_lambda=0.7)
    torch.testing.assert_close(got, slow_gae(reward, value, INTERLEAVED, is_truncated, bootstrap, 0.9, 0.7))
    returns = discounted_returns(reward, INTERLEAVED, is_truncated, bootstrap, discount=0.9)
    zero = torch.zeros_like(reward)
    torch.testing.assert_close(returns, slow_gae(reward, zero, INTERLEAVED, is_truncated, bootstrap, 0.9, 1.0))


def test_token_rewards_fold_the_kl_in():
    """β = .05, k = (.2, .4), score 1: −.01 and 1 − .02 = .98, together 1 − .05·.6 = .97 (the mean would give .985)."""
    got = token_rewards(torch.tensor([1.0]), torch.tensor([0.2, 0.4]), torch.tensor([0, 0]), kl_coef=0.05)
    torch.testing.assert_close(got, torch.tensor([-0.01, 0.98]))
    assert got.sum().item() == pytest.approx(0.97)


def test_the_score_lands_on_the_last_token_of_its_sequence():
    score, kl = torch.tensor([10.0, 20.0, 30.0]), torch.linspace(0.1, 0.7, 7)
    got = token_rewards(score, kl, INTERLEAVED, kl_coef=0.5)
    torch.testing.assert_close(got + 0.5 * kl, torch.tensor([0.0, 0.0, 0.0, 10.0, 0.0, 20.0, 30.0]))
    expected = score - 0.5 * segment_sum(kl, INTERLEAVED, 3)
    torch.testing.assert_close(segment_sum(got, INTERLEAVED, 3), expected)


def test_nothing_in_nothing_out_and_half_precision():
    empty, ids = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert gae(empty, empty, ids, empty, empty).shape == (0,)
    assert discounted_returns(empty, ids, empty, empty).shape == (0,)
    assert token_rewards(empty, empty, ids).shape == (0,)
    half = REWARD.bfloat16()
    assert gae(half, half, ONE, ENDED, ENDED).dtype == torch.float32
