"""Advantages against numbers worked by hand, and what expectation they have."""

from __future__ import annotations

import itertools

import pytest
import torch

from lydian.objectives.advantage import (
    batch_whiten,
    group_mean,
    group_mean_batch_std,
    group_mean_std,
    leave_one_out,
    max_rl,
    normalise_then_sum,
    raw_reward,
    remax,
    soft_overlong,
    whiten,
)

ONE_GROUP = torch.zeros(4, dtype=torch.long)
ONE_RIGHT = torch.tensor([1.0, 0.0, 0.0, 0.0])


def test_group_advantages():
    """Rewards (1, 0, 0, 0). Mean .25; population std √(.1875) = .4330: .75/.4330 = 1.7321, −.5774; sample std .5 with
    ε = 1e-4: .75/.5001 = 1.4997, −.4999; leave one out: 1 − 0, 0 − 1/3; over the mean: .75/.25 = 3, −1."""
    torch.testing.assert_close(group_mean(ONE_RIGHT, ONE_GROUP), torch.tensor([0.75, -0.25, -0.25, -0.25]))
    for ddof, epsilon, expected in ((0, 0.0, (1.7321, -0.5774)), (1, 1e-4, (1.4997, -0.4999))):
        got = group_mean_std(ONE_RIGHT, ONE_GROUP, ddof=ddof, epsilon=epsilon)
        torch.testing.assert_close(got, torch.tensor([expected[0], *[expected[1]] * 3]), atol=5e-5, rtol=0)
    torch.testing.assert_close(leave_one_out(ONE_RIGHT, ONE_GROUP), torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3]))
    assert max_rl(ONE_RIGHT, ONE_GROUP).tolist() == [3.0, -1.0, -1.0, -1.0]
    assert raw_reward(ONE_RIGHT, ONE_GROUP).tolist() == ONE_RIGHT.tolist()


def test_groups_do_not_mix():
    """Groups interleaved: (1, 0) and (5, 5). The second has no spread."""
    reward, group = torch.tensor([1.0, 5.0, 0.0, 5.0]), torch.tensor([0, 1, 0, 1])
    assert group_mean(reward, group).tolist() == [0.5, 0.0, -0.5, 0.0]
    assert group_mean_std(reward, group, ddof=0, epsilon=0.0).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert leave_one_out(reward, group).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert max_rl(reward, group).tolist() == [1.0, 0.0, -1.0, 0.0]


EXACT = {
    "group_mean": group_mean,
    "group_mean_std": lambda r, g: group_mean_std(r, g, epsilon=0.0),
    "leave_one_out": leave_one_out,
    "max_rl": max_rl,
    "batch_whiten": lambda r, g: batch_whiten(r, g, epsilon=0.0),
    "group_mean_batch_std": lambda r, g: group_mean_batch_std(r, g, epsilon=0.0),
    "group_mean_batch_std of reward": lambda r, g: group_mean_batch_std(r, g, std_of="reward", epsilon=0.0),
    "normalise_then_sum": lambda r, g: normalise_then_sum(torch.stack([r, r], 1), g, epsilon=0.0),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("value", [0.1, 0.7, 1e8 + 0.1, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_are_exactly_zero(name: str, value: float, dtype: torch.dtype):
    """Three times .1 is .30000000000000004, and a third of it is not .1: a deviation of 10⁻¹⁷ over a spread of 10⁻¹⁷
    would be 1."""
    reward, group = torch.full((9,), value, dtype=dtype), torch.tensor([0, 1, 2] * 3)
    assert EXACT[name](reward, group).tolist() == [0.0] * 9


def test_group_of_one():
    """Nobody to compare with: 0 where the group is the baseline, refused where the others are, untouched elsewhere."""
    one, group = torch.ones(1), torch.zeros(1, dtype=torch.long)
    for function in (group_mean, group_mean_std, max_rl, batch_whiten, group_mean_batch_std):
        assert function(one, group).item() == 0
    assert raw_reward(one, group).item() == 1
    assert remax(one, group, torch.tensor([0.25])).item() == 0.75
    assert normalise_then_sum(torch.ones(1, 2), group).item() == 0
    with pytest.raises(ValueError, match="at least two"):
        leave_one_out(one, group)


def test_max_rl_expects_a_truncated_log_likelihood():
    """G = 3 right-or-wrong answers, each right with p. E[(1/G) Σ A_i ∇log π_i] = Σ_{k<3} ∇pass@k / k, which is
    (1 + (1 − p)) ∇p since ∇pass@k = k (1 − p)^(k−1) ∇p. With ∇p = 1: ∇log π is 1/p if right, −1/(1 − p) if wrong."""
    p, group, expected = 0.3, torch.zeros(3, dtype=torch.long), 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=3):
        reward = torch.tensor(outcome, dtype=torch.float64)
        score = torch.where(reward > 0, 1 / p, -1 / (1 - p))
        probability = torch.where(reward > 0, p, 1 - p).prod()
        expected += (probability * (max_rl(reward, group) * score).mean()).item()
    assert expected == pytest.approx(1 + 0.7)


@pytest.mark.parametrize(("advantage", "factor"), [(raw_reward, 1.0), (leave_one_out, 1.0), (group_mean, 2 / 3)])
def test_which_baseline_keeps_the_expected_gradient(advantage, factor: float):
    """G = 3, as above: the mean that includes the answer itself shrinks the gradient ∇p = 1 by (G − 1)/G."""
    p, group, expected = 0.3, torch.zeros(3, dtype=torch.long), 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=3):
        reward = torch.tensor(outcome, dtype=torch.float64)
        score = torch.where(reward > 0, 1 / p, -1 / (1 - p))
        probability = torch.where(reward > 0, p, 1 - p).prod()
        expected += (probability * (advantage(reward, group) * score).mean()).item()
    assert expected == pytest.approx(factor)


def test_max_rl_refuses_negative_rewards_and_is_zero_without_success():
    with pytest.raises(ValueError, match="negative"):
        max_rl(torch.tensor([-1.0, 1.0]), torch.zeros(2, dtype=torch.long))
    assert max_rl(torch.zeros(4), ONE_GROUP).tolist() == [0.0] * 4


def test_batch_statistics():
    """Groups (1, 0) and (5, 3). Whitened: mean 2.25, squared deviations 1.5625 + 5.0625 + 7.5625 + .5625 = 14.75;
    population std √3.6875 = 1.92029. Deviations from the groups (.5, −.5, 1, −1): squares 2.5, population std
    √.625 = .790569, sample std √(2.5/3) = .912871."""
    reward, group = torch.tensor([1.0, 0.0, 5.0, 3.0]), torch.tensor([0, 0, 1, 1])
    centred = torch.tensor([0.5, -0.5, 1.0, -1.0])
    torch.testing.assert_close(batch_whiten(reward, group, ddof=0, epsilon=0.0), (reward - 2.25) / 1.92029)
    torch.testing.assert_close(group_mean_batch_std(reward, group, ddof=0, epsilon=0.0), centred / 0.790569)
    torch.testing.assert_close(group_mean_batch_std(reward, group, ddof=1, epsilon=0.1), centred / 1.012871)
    got = group_mean_batch_std(reward, group, std_of="reward", ddof=0, epsilon=0.0)
    torch.testing.assert_close(got, centred / 1.92029)


def test_whiten():
    """(1, 2, 6): mean 3, squares 4 + 1 + 9 = 14; sample std √7, population √(14/3)."""
    values = torch.tensor([1.0, 2.0, 6.0])
    torch.testing.assert_close(whiten(values, ddof=1, epsilon=0.0), (values - 3) / 7**0.5)
    torch.testing.assert_close(whiten(values, ddof=0, epsilon=1.0), (values - 3) / ((14 / 3) ** 0.5 + 1))
    assert whiten(torch.zeros(0)).shape == (0,)


def test_each_reward_is_normalised_before_they_are_added():
    """Right: (1, 1, 0, 0), format: (1, 0, 1, 0) of scale 100. z is ±1 for both; with weights (1, ½): 1.5, .5, −.5,
    −1.5. Added first, format would decide alone. Whitened: mean 0, population std √((2.25 + .25)/2) = 1.118034."""
    rewards = torch.tensor([[1.0, 100.0], [1.0, 0.0], [0.0, 100.0], [0.0, 0.0]])
    weights, expected = (1.0, 0.5), torch.tensor([1.5, 0.5, -0.5, -1.5])
    plain = normalise_then_sum(rewards, ONE_GROUP, weights=weights, is_whitened=False, ddof=0, epsilon=0.0)
    torch.testing.assert_close(plain, expected)
    whitened = normalise_then_sum(rewards, ONE_GROUP, weights=weights, ddof=0, epsilon=0.0)
    torch.testing.assert_close(whitened, expected / 1.118034)


def test_remax():
    assert remax(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), torch.tensor([0.25, 1.0])).tolist() == [0.75, -1.0]


def test_soft_overlong():
    """L = 100, c = 20: 0 to 80 tokens, (80 − 90)/20 = −.5 at 90, −1 at 100 and beyond."""
    got = soft_overlong(torch.tensor([0, 80, 85, 90, 100, 101, 500]), limit=100, buffer=20)
    assert got.tolist() == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0, -1.0]
    for buffer in (0, 101):
        with pytest.raises(ValueError, match="buffer"):
            soft_overlong(torch.tensor([1]), limit=100, buffer=buffer)


@pytest.mark.parametrize("name", EXACT)
def test_half_precision_is_raised_and_groups_may_have_gaps(name: str):
    got = EXACT[name](torch.tensor([1.0, 0.0, 1.0], dtype=torch.bfloat16), torch.tensor([7, 7, 7]))
    assert got.dtype == torch.float32 and got.isfinite().all() and not got.requires_grad
