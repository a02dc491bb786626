"""KL estimators: values and gradients by hand, and their bias by exact expectation over a small policy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lydian.objectives.divergence import k1, k2, k3, ratio_of, straight_through

LOGITS = torch.tensor([1.0, -0.5, 0.2, 0.0], dtype=torch.float64)
OTHER = torch.tensor([0.1, 0.3, 0.4, 0.2], dtype=torch.float64).log()


def policy(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, 0)


def kl_gradient(is_reversed: bool = False) -> Tensor:
    """∇ of KL(π ‖ other), or of KL(other ‖ π), in the logits; exact."""
    logits = LOGITS.clone().requires_grad_()
    log_p, log_o = policy(logits), OTHER
    kl = (log_o.exp() * (log_o - log_p)).sum() if is_reversed else (log_p.exp() * (log_p - log_o)).sum()
    return torch.autograd.grad(kl, logits)[0]


def as_loss(estimator) -> Tensor:
    """E over the drawn token of ∇ estimator: the sampling itself is not differentiated."""
    logits = LOGITS.clone().requires_grad_()
    log_p = policy(logits)
    return torch.autograd.grad((log_p.exp().detach() * estimator(log_p, OTHER)).sum(), logits)[0]


def as_reward(estimator) -> Tensor:
    """E over the drawn token of estimator · ∇ log π: what a penalty in the reward does."""
    logits = LOGITS.clone().requires_grad_()
    log_p = policy(logits)
    return torch.autograd.grad((log_p.exp().detach() * estimator(log_p, OTHER).detach() * log_p).sum(), logits)[0]


def test_values_by_hand():
    """log π_sampler = −1, log π_other = −2, d = −1: k1 = 1, k2 = 1/2, k3 = e⁻¹ − 1 + 1 = .3679."""
    sampler, other = torch.tensor([-1.0]), torch.tensor([-2.0])
    assert k1(sampler, other).item() == 1
    assert k2(sampler, other).item() == 0.5
    assert k3(sampler, other).item() == pytest.approx(math.exp(-1))
    assert straight_through(sampler, other, value="k1").item() == 1
    assert straight_through(sampler, other, value="k3").item() == pytest.approx(math.exp(-1))


def test_which_value_is_unbiased():
    """k1, k3 and the straight-through forms average to KL(π ‖ other); k2 does not."""
    log_p = policy(LOGITS)
    truth = (log_p.exp() * (log_p - OTHER)).sum()
    for estimator in (k1, k3, straight_through, lambda s, o: straight_through(s, o, value="k1")):
        torch.testing.assert_close((log_p.exp() * estimator(log_p, OTHER)).sum(), truth)
    assert abs((log_p.exp() * k2(log_p, OTHER)).sum() - truth) > 0.02


def test_which_gradient_is_right_as_a_loss():
    """k1: zero; k2 and straight-through: ∇KL(π ‖ other); k3: ∇KL(other ‖ π), which is another vector."""
    right, reversed_ = kl_gradient(), kl_gradient(is_reversed=True)
    assert (right - reversed_).abs().max() > 0.05
    torch.testing.assert_close(as_loss(k1), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(as_loss(k2), right)
    torch.testing.assert_close(as_loss(k3), reversed_)
    torch.testing.assert_close(as_loss(straight_through), right)
    torch.testing.assert_close(as_loss(lambda s, o: straight_through(s, o, value="k1")), right)


def test_which_gradient_is_right_as_a_reward():
    """k1: ∇KL(π ‖ other); k3: short of it by ∇KL(other ‖ π); k2: neither."""
    right = kl_gradient()
    torch.testing.assert_close(as_reward(k1), right)
    torch.testing.assert_close(as_reward(k3), right - kl_gradient(is_reversed=True))
    assert (as_reward(k2) - right).abs().max() > 0.02


def test_gradients_by_hand():
    """d = −1, in log π: k1 1; k2 −d = 1; k3 1 − e^d = .6321; straight-through as k2."""
    for estimator, expected in ((k1, 1.0), (k2, 1.0), (k3, 1 - math.exp(-1)), (straight_through, 1.0)):
        at = torch.tensor([-1.0], requires_grad=True)
        assert torch.autograd.grad(estimator(at, torch.tensor([-2.0])).sum(), at)[0].item() == pytest.approx(expected)


def test_ratio_is_clamped():
    assert ratio_of(torch.tensor([50.0, -50.0])).tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@pytest.mark.parametrize("estimator", [k1, k2, k3, straight_through])
@pytest.mark.parametrize(("sampler", "other"), [(-50.0, 0.0), (0.0, -50.0), (-math.inf, -1.0), (-1.0, -math.inf)])
def test_extremes_stay_finite(estimator, sampler: float, other: float):
    at = torch.tensor([sampler], requires_grad=True)
    value = estimator(at, torch.tensor([other]))
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), at)[0].isfinite().all()


@pytest.mark.parametrize("estimator", [k1, k2, k3, straight_through])
def test_two_impossible_tokens_and_half_precision(estimator):
    nothing = torch.tensor([-math.inf])
    assert estimator(nothing, nothing).item() == 0
    half = torch.tensor([-1.0], dtype=torch.bfloat16)
    assert estimator(half, half).dtype == torch.float32


@pytest.mark.parametrize("estimator", [k2, k3])
def test_gradients_by_finite_differences(estimator):
    at = torch.linspace(-2.0, -0.3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: estimator(x, at.flip(0)), (at.clone().requires_grad_(),))
