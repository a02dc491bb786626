"""Losses, advantages and divergences against numbers worked by hand, and gradients against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lydian.objectives.advantage import group_mean, group_mean_std, leave_one_out
from lydian.objectives.divergence import k1, k2, k3
from lydian.objectives.likelihood import nll
from lydian.objectives.policy_gradient import clip, reinforce
from lydian.objectives.preference import dpo

ONE_GROUP = torch.zeros(4, dtype=torch.long)
ONE_RIGHT = torch.tensor([1.0, 0.0, 0.0, 0.0])


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    loss(at).sum().backward()
    assert at.grad is not None
    return at.grad


def test_clip_three_tokens():
    """ε = 0.2; (π_old, π, A) = (.25, .40, .5), (.30, .60, −.5), (.50, .30, −.5): ratios 1.6, 2, 0.6.

    1.6·.5 is above 1.2·.5 = .6: clipped, no gradient. 2·(−.5) = −1 is below 1.2·(−.5): alive, gradient of the loss
    −rA = .5·r, d/dlogπ = .5·2 = 1. 0.6·(−.5) = −.3 is above .8·(−.5) = −.4: clipped, no gradient."""
    proximal = torch.tensor([0.25, 0.30, 0.50]).log()
    current = torch.tensor([0.40, 0.60, 0.30]).log()
    advantage = torch.tensor([0.5, -0.5, -0.5])
    loss, statistics = clip(current, proximal, advantage, clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(-loss, torch.tensor([0.6, -1.0, -0.4]))
    torch.testing.assert_close(statistics["ratio"], torch.tensor([1.6, 2.0, 0.6]))
    assert statistics["clipped_high"].tolist() == [1, 0, 0]
    assert statistics["clipped_low"].tolist() == [0, 0, 1]
    got = gradient(lambda x: clip(x, proximal, advantage).loss, current)
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.0]))


def test_clip_is_asymmetric():
    """Ratio 1.25 with A = 1: inside [0.8, 1.28] it is 1.25; inside [0.8, 1.2] it is 1.2."""
    zero, up = torch.zeros(1), torch.tensor([math.log(1.25)])
    assert clip(up, zero, torch.ones(1), clip_high=0.28).loss.item() == pytest.approx(-1.25)
    assert clip(up, zero, torch.ones(1), clip_high=0.2).loss.item() == pytest.approx(-1.2)


def test_clip_at_ratio_one_is_reinforce():
    """At π = π_proximal the gradients agree: d(−rA)/dlogπ = −rA = −A."""
    x, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([0.7, -1.3])
    torch.testing.assert_close(
        gradient(lambda y: clip(y, x, advantage).loss, x), gradient(lambda y: reinforce(y, advantage).loss, x)
    )


@pytest.mark.parametrize("shift", [-50.0, 50.0])
def test_extreme_ratios_stay_finite(shift: float):
    at = torch.tensor([shift])
    for advantage in (1.0, -1.0):
        loss = clip(at, torch.zeros(1), torch.tensor([advantage])).loss
        assert loss.isfinite().all()
        assert gradient(lambda y, a=advantage: clip(y, torch.zeros(1), torch.tensor([a])).loss, at).isfinite().all()


def test_group_advantages():
    """Rewards (1, 0, 0, 0). Mean .25; population std √(.1875) = .4330: .75/.4330 = 1.7321, −.5774; sample std .5 with
    ε = 1e-4: .75/.5001 = 1.4997, −.4999; leave one out: 1 − 0, 0 − 1/3."""
    torch.testing.assert_close(group_mean(ONE_RIGHT, ONE_GROUP), torch.tensor([0.75, -0.25, -0.25, -0.25]))
    for ddof, epsilon, expected in ((0, 0.0, (1.7321, -0.5774)), (1, 1e-4, (1.4997, -0.4999))):
        got = group_mean_std(ONE_RIGHT, ONE_GROUP, ddof=ddof, epsilon=epsilon)
        torch.testing.assert_close(got, torch.tensor([expected[0], *[expected[1]] * 3]), atol=5e-5, rtol=0)
    torch.testing.assert_close(leave_one_out(ONE_RIGHT, ONE_GROUP), torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3]))


def test_groups_do_not_mix_and_equal_rewards_give_zero():
    """Groups interleaved: (1, 0) and (5, 5). The second has no spread: exactly zero, never NaN."""
    reward, group = torch.tensor([1.0, 5.0, 0.0, 5.0]), torch.tensor([0, 1, 0, 1])
    assert group_mean(reward, group).tolist() == [0.5, 0.0, -0.5, 0.0]
    assert group_mean_std(reward, group, ddof=0, epsilon=0.0).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert leave_one_out(reward, group).tolist() == [1.0, 0.0, -1.0, 0.0]


def test_group_of_one():
    one, group = torch.ones(1), torch.zeros(1, dtype=torch.long)
    assert group_mean(one, group).item() == 0
    assert group_mean_std(one, group).item() == 0
    with pytest.raises(ValueError, match="at least two"):
        leave_one_out(one, group)


def test_dpo_by_hand():
    """Zero margin: log 2. Sums −12 and −100, reference −15 and −110, β = .1: .1·(3 − 10) = −.7, −log σ(−.7) = 1.1032.

    Gradient of the pair's loss in the chosen sum: −β σ(.7) = −.1·.66819 = −.066819; it stands at two sites, each of
    weight one here, so twice that."""
    pair, chosen = torch.zeros(2), torch.tensor([1.0, 0.0])
    ids = torch.tensor([0, 1])
    start = dpo(torch.tensor([-3.0, -4.0]), torch.tensor([-3.0, -4.0]), ids, pair, chosen)
    torch.testing.assert_close(start.loss, torch.full((2,), math.log(2)))
    policy, reference = torch.tensor([-12.0, -100.0]), torch.tensor([-15.0, -110.0])
    loss, statistics = dpo(policy, reference, ids, pair, chosen, beta=0.1)
    torch.testing.assert_close(loss, torch.full((2,), 1.1032), atol=5e-5, rtol=0)
    torch.testing.assert_close(statistics["margin"], torch.full((2,), -0.7))
    got = gradient(lambda y: dpo(y, reference, ids, pair, chosen, beta=0.1).loss, policy)
    torch.testing.assert_close(got, torch.tensor([-2 * 0.066819, 2 * 0.066819]), atol=1e-5, rtol=0)


def test_dpo_sums_tokens_and_keeps_pairs_apart():
    """Two pairs with sequences out of order; token sums by hand: pair 7: .5·((−1−1) − (−3)) = .5; pair 9: −.5."""
    logprobs = torch.tensor([-1.0, -1.0, -3.0, -2.0, -1.0])
    sequence = torch.tensor([0, 0, 1, 2, 3])
    pair, chosen = torch.tensor([7.0, 7.0, 9.0, 9.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    _, statistics = dpo(logprobs, torch.zeros(5), sequence, pair, chosen, beta=0.5)
    torch.testing.assert_close(statistics["margin"], torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5]))


def test_divergences_by_hand():
    """log π_sampler = −1, log π_other = −2, d = −1: k1 = 1, k2 = 1/2, k3 = e⁻¹ − 1 + 1 = .3679."""
    sampler, other = torch.tensor([-1.0]), torch.tensor([-2.0])
    assert k1(sampler, other).item() == 1
    assert k2(sampler, other).item() == 0.5
    assert k3(sampler, other).item() == pytest.approx(math.exp(-1))


def test_divergence_estimators_are_unbiased_in_expectation():
    """Exact expectation under q over three tokens: k1 and k3 give KL(q ‖ p); k2 does not."""
    q, p = torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.2, 0.4, 0.4])
    truth = (q * (q.log() - p.log())).sum()
    torch.testing.assert_close((q * k1(q.log(), p.log())).sum(), truth)
    torch.testing.assert_close((q * k3(q.log(), p.log())).sum(), truth)
    assert abs((q * k2(q.log(), p.log())).sum() - truth) > 0.05


def _doubles(n: int) -> Tensor:
    return torch.linspace(-2.0, -0.3, n, dtype=torch.float64)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "nll": lambda x: nll(x).loss,
    "reinforce": lambda x: reinforce(x, torch.linspace(-1, 1, 4, dtype=torch.float64)).loss,
    "clip": lambda x: clip(x, _doubles(4) + 0.05, torch.linspace(-1, 1, 4, dtype=torch.float64)).loss,
    "dpo": lambda x: (
        dpo(
            x,
            _doubles(4).flip(0),
            torch.tensor([0, 0, 1, 1]),
            torch.zeros(2, dtype=torch.float64),
            torch.tensor([1.0, 0.0], dtype=torch.float64),
        ).loss
    ),
    "k2": lambda x: k2(x, _doubles(4).flip(0)),
    "k3": lambda x: k3(x, _doubles(4).flip(0)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_finite_differences(name: str):
    assert torch.autograd.gradcheck(LOSSES[name], (_doubles(4).requires_grad_(),))
