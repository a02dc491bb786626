"""The entropy bonus pushes entropy up; its coefficient follows a target."""

from __future__ import annotations

import pytest
import torch

from lydian.objectives.entropy import entropy_bonus, next_entropy_coef


def test_bonus_by_hand():
    """c = .1: −.05 and −.2; descending the loss raises H: gradient −.1."""
    entropy = torch.tensor([0.5, 2.0], requires_grad=True)
    loss, statistics = entropy_bonus(entropy, coef=0.1)
    torch.testing.assert_close(loss, torch.tensor([-0.05, -0.2]))
    assert torch.autograd.grad(loss.sum(), entropy)[0].tolist() == pytest.approx([-0.1, -0.1])
    assert statistics["entropy"].tolist() == [0.5, 2.0] and not statistics["entropy"].requires_grad
    assert entropy_bonus(entropy.detach().bfloat16(), coef=0.1).loss.dtype == torch.float32


def test_coefficient_follows_the_target():
    """Target .2, Δ .005: up below it, down above it, still at it, within [min, max]."""
    assert next_entropy_coef(0.01, 0.15) == pytest.approx(0.015)
    assert next_entropy_coef(0.01, 0.30) == pytest.approx(0.005)
    assert next_entropy_coef(0.01, 0.20) == 0.01
    assert next_entropy_coef(0.002, 0.30) == 0
    assert next_entropy_coef(0.099, 0.1, max_coef=0.1) == 0.1
