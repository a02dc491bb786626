"""Value losses by hand, with the gradients that the clip and Huber's bound remove."""

from __future__ import annotations

import pytest
import torch

from lydian.objectives.value import value_clipped, value_huber, value_squared


def test_squared():
    """V = 2, R = 3: ½ (−1)² = .5, gradient V − R = −1."""
    value, returns = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])
    loss, statistics = value_squared(value, returns)
    assert loss.item() == 0.5 and statistics["value_error"].item() == -1
    assert torch.autograd.grad(loss.sum(), value)[0].item() == -1


@pytest.mark.parametrize(
    ("value", "returns", "loss", "slope", "is_clipped"),
    [
        (2.0, 3.0, 1.62, 0.0, 1.0),  # 1.2 is farther from 3 than 2 is: ½ (1.2 − 3)² = 1.62, no gradient
        (1.1, 3.0, 1.805, -1.9, 0.0),  # inside the range: ½ (1.1 − 3)²
        (2.0, 0.0, 2.0, 2.0, 0.0),  # outside, yet wrong: ½ 2² beats ½ 1.2², the way back stays open
    ],
)
def test_clipped(value: float, returns: float, loss: float, slope: float, is_clipped: float):
    """V_old = 1, ε = .2: V counts as at most 1.2."""
    at = torch.tensor([value], requires_grad=True)
    got, statistics = value_clipped(at, torch.tensor([1.0]), torch.tensor([returns]), value_clip=0.2)
    assert got.item() == pytest.approx(loss)
    assert torch.autograd.grad(got.sum(), at)[0].item() == pytest.approx(slope)
    assert statistics["value_clipped"].item() == is_clipped


def test_huber():
    """δ = 1: error −3 → 1·(3 − ½) = 2.5 with slope −1; error −.5 → .125 with slope −.5."""
    at = torch.tensor([2.0, 2.5], requires_grad=True)
    loss = value_huber(at, torch.tensor([5.0, 3.0]), delta=1.0).loss
    assert loss.tolist() == [2.5, 0.125]
    assert torch.autograd.grad(loss.sum(), at)[0].tolist() == [-1.0, -0.5]


def test_targets_are_constants_and_half_precision_is_raised():
    value, target = (torch.tensor([1.0], dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    for loss in (value_squared(value, target), value_clipped(value, target, target), value_huber(value, target)):
        assert loss.loss.dtype == torch.float32
        loss.loss.sum().backward()
    assert value.grad is not None and target.grad is None
