"""Losses on the margin against numbers worked by hand.

The common example has log π (−1, −3) and log π_reference (−3, −2), one token a reply: Δ_w = 2, Δ_l = −1, so that at
β = 0.1 the rewards are 0.2 and −0.1 and h = 0.3.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from lydian.objectives.preference import cdpo, discopop, dpo, exo, f_dpo, hinge, ipo, ipo_mean, robust_dpo, wpo

IDS, PAIR, CHOSEN = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
CURRENT, REFERENCE = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def at(loss, *, log_ratios=(2.0, -1.0), **settings) -> float:
    """The loss of one pair of one-token replies with these log-ratios."""
    got = loss(torch.tensor(log_ratios) - 3, torch.full((2,), -3.0), IDS, PAIR, CHOSEN, **settings).loss
    assert got[0] == got[1]
    return got[0].item()


def slope(loss, h: float, **settings) -> float:
    """d loss / d h at β = 1, by the gradient of the chosen reply; the pair's loss stands at two sites."""
    x = torch.tensor([h - 3.0, -3.0], requires_grad=True)
    loss(x, torch.full((2,), -3.0), IDS, PAIR, CHOSEN, beta=1.0, **settings).loss.sum().backward()
    assert x.grad is not None
    assert x.grad[1].item() == pytest.approx(-x.grad[0].item())
    return x.grad[0].item() / 2


def test_dpo_by_hand():
    """Zero margin: log 2. Sums −12 and −100, reference −15 and −110, β = .1: .1·(3 − 10) = −.7, −log σ(−.7) = 1.1032.

    Gradient of the pair's loss in the chosen sum: −β σ(.7) = −.1·.66819 = −.066819; it stands at two sites, each of
    weight one here, so twice that."""
    start = dpo(CURRENT, CURRENT, IDS, PAIR, CHOSEN)
    torch.testing.assert_close(start.loss, torch.full((2,), math.log(2)))
    policy, reference = torch.tensor([-12.0, -100.0]), torch.tensor([-15.0, -110.0])
    x = policy.clone().requires_grad_()
    loss, statistics = dpo(x, reference, IDS, PAIR, CHOSEN, beta=0.1)
    torch.testing.assert_close(loss, torch.full((2,), 1.1032), atol=5e-5, rtol=0)
    torch.testing.assert_close(statistics["margin"], torch.full((2,), -0.7))
    loss.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([-2 * 0.066819, 2 * 0.066819]), atol=1e-5, rtol=0)


def test_dpo_sums_tokens_and_keeps_pairs_apart():
    """Two pairs with sequences out of order; token sums by hand: pair 7: .5·((−1−1) − (−3)) = .5; pair 9: −.5."""
    logprobs = torch.tensor([-1.0, -1.0, -3.0, -2.0, -1.0])
    sequence = torch.tensor([0, 0, 1, 2, 3])
    pair, chosen = torch.tensor([7.0, 7.0, 9.0, 9.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    _, statistics = dpo(logprobs, torch.zeros(5), sequence, pair, chosen, beta=0.5)
    torch.testing.assert_close(statistics["margin"], torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5]))


def test_statistics_show_a_chosen_reply_that_falls():
    """Chosen −3 → −4, rejected −2 → −6: the margin grows to .1·(−1 + 4) = .3 while the chosen falls."""
    reference, current = torch.tensor([-3.0, -2.0]), torch.tensor([-4.0, -6.0])
    before = dpo(reference, reference, IDS, PAIR, CHOSEN).statistics
    after = {name: values[0].item() for name, values in dpo(current, reference, IDS, PAIR, CHOSEN).statistics.items()}
    assert (before["chosen_logprobs"][0], before["preference_accuracy"][0]) == (-3, 0)
    expected = {"reward_chosen": -0.1, "reward_rejected": -0.4, "margin": 0.3, "preference_accuracy": 1.0}
    assert after == pytest.approx(expected | {"chosen_logprobs": -4.0, "rejected_logprobs": -6.0})


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (dpo, 0.5544),  # log(1 + e^−.3)
        (hinge, 0.7),  # 1 − .3
        (functools.partial(cdpo, label_smoothing=0.1), 0.5844),  # .9·.5544 + .1·.8544
        (functools.partial(robust_dpo, label_smoothing=0.1), 0.5169),  # (.9·.5544 − .1·.8544) / .8
        (ipo, 4.0),  # (3 − 5)²
        # q = σ(.3) = .574443: q(log q − log .9) + (1 − q)(log(1 − q) − log .1) = −.25793 + .61630
        (functools.partial(exo, label_smoothing=0.1), 0.3584),
        (discopop, 0.7404),  # s = σ(.3/.05) = .997527: .002473·.554355 + .997527·e^−.3
    ],
)
def test_values_at_the_example(loss, expected: float):
    assert at(loss, beta=0.1) == pytest.approx(expected, abs=5e-5)


def test_ipo_sums_or_means():
    """β = .1, lengths 10 and 5, Δ_w = 2, Δ_l = −1: summed (3 − 5)² = 4; averaged (.2 + .2 − 5)² = 21.16."""
    ids = torch.tensor([0] * 10 + [1] * 5)
    policy = torch.tensor([0.2 - 1] * 10 + [-0.2 - 1] * 5)
    for loss, expected in ((ipo, 4.0), (ipo_mean, 21.16)):
        assert loss(policy, torch.full((15,), -1.0), ids, PAIR, CHOSEN, beta=0.1).loss[3].item() == pytest.approx(
            expected
        )


def test_cdpo_is_least_at_its_labels_odds():
    """Slope −(1 − ε) σ(−h) + ε σ(h) is zero where σ(h) = 1 − ε, h = log 9 at ε = .1; with ε = 0 it is DPO."""
    assert slope(cdpo, math.log(9), label_smoothing=0.1) == pytest.approx(0, abs=1e-7)
    assert at(cdpo, label_smoothing=0.0) == at(dpo)


def test_robust_dpo_is_unbiased_under_swapped_labels():
    """Labels swapped with ε = .2: .8 · robust(pair) + .2 · robust(swapped) is DPO's loss on the clean pair."""
    mean = 0.8 * at(robust_dpo, label_smoothing=0.2) + 0.2 * at(robust_dpo, log_ratios=(-1.0, 2.0), label_smoothing=0.2)
    assert mean == pytest.approx(at(dpo))
    with pytest.raises(ValueError, match="label_smoothing"):
        at(robust_dpo, label_smoothing=0.5)


def test_hinge_leaves_separated_pairs_alone():
    """Beyond h = 1 loss and gradient are exactly 0; below, the slope is −1."""
    assert (slope(hinge, 1.1), slope(hinge, 0.9)) == (0, -1)
    assert at(hinge, log_ratios=(1.1, 0.0), beta=1.0) == 0


def test_exo_is_a_reverse_kl():
    """KL((½, ½) ‖ (.9, .1)) = ½ log(.25/.09) = .5108; zero where q = 1 − ε, h = log 9."""
    assert at(exo, log_ratios=(0.0, 0.0), label_smoothing=0.1) == pytest.approx(0.510826, abs=1e-6)
    assert at(exo, log_ratios=(math.log(9), 0.0), beta=1.0, label_smoothing=0.1) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="label_smoothing"):
        at(exo, label_smoothing=0.0)


def test_discopop_changes_from_logistic_to_exponential():
    """s = σ(h/τ): far below zero −log σ(h), far above e^(−h), at zero their mean ½ (log 2 + 1)."""
    assert at(discopop, log_ratios=(-2.0, 0.0), beta=1.0) == pytest.approx(-math.log(sigma(-2.0)))
    assert at(discopop, log_ratios=(2.0, 0.0), beta=1.0) == pytest.approx(math.exp(-2.0))
    assert at(discopop, log_ratios=(0.0, 0.0)) == pytest.approx((math.log(2) + 1) / 2)


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"f_divergence": "reverse_kl"}, 3.0),
        ({"f_divergence": "forward_kl"}, math.exp(1) - math.exp(-2)),  # −e^−2 + e^1
        ({"f_divergence": "jensen_shannon"}, math.log(sigma(2)) - math.log(sigma(-1))),
        ({"f_divergence": "alpha", "alpha": 0.5}, 2 * (math.exp(0.5) - math.exp(-1))),
        ({"f_divergence": "alpha", "alpha": 1.0}, math.exp(1) - math.exp(-2)),  # the forward KL
        ({"f_divergence": "alpha", "alpha": 1e-3}, 3.0),  # nearly the reverse KL
    ],
)
def test_f_divergences(settings: dict, difference: float):
    """−log σ(.1 (g(2) − g(−1))) with g = f′ up to constants; rewards are 0 at the reference."""
    assert at(f_dpo, beta=0.1, **settings) == pytest.approx(-math.log(sigma(0.1 * difference)), abs=3e-4)
    start = f_dpo(CURRENT, CURRENT, IDS, PAIR, CHOSEN, **settings)
    assert start.loss[0].item() == pytest.approx(math.log(2))
    assert start.statistics["reward_chosen"][0].item() == pytest.approx(0, abs=1e-7)


def test_f_divergence_is_checked():
    with pytest.raises(ValueError, match="alpha"):
        at(f_dpo, f_divergence="alpha", alpha=0.0)


def weighted(log_collision: Tensor, **settings) -> tuple[float, float]:
    loss, statistics = wpo(CURRENT, REFERENCE, log_collision, IDS, PAIR, CHOSEN, **settings)
    return loss[0].item(), statistics["weight"][0].item()


def test_wpo_weighs_by_the_policy():
    """log π (−1, −3), log Σπ² (−.9, −2.7): w = e^(−.1 − .3) = .6703, times .5544. Above one it is cut to max_weight."""
    assert weighted(torch.tensor([-0.9, -2.7])) == pytest.approx((0.3716, 0.6703), abs=5e-5)
    assert weighted(torch.tensor([-2.0, -3.0])) == pytest.approx((0.5544, 1.0), abs=5e-5)
    assert weighted(torch.tensor([-1.5, -3.0]), max_weight=2.0)[1] == pytest.approx(math.exp(0.5))


def test_wpo_weight_is_constant():
    """With weight e^−.4 the gradient in the chosen logprob is that of DPO times the weight, at each of two sites."""
    grads = []
    for loss in (dpo, lambda x, r, *facts: wpo(x, r, torch.tensor([-0.9, -2.7]), *facts)):
        x = CURRENT.clone().requires_grad_()
        loss(x, REFERENCE, IDS, PAIR, CHOSEN).loss.sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], math.exp(-0.4) * grads[0])
