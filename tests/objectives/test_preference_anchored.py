"""Losses that say where each reply shall go, at Δ_w = 2, Δ_l = −1, β = .1 (rewards .2 and −.1), and at the start."""

from __future__ import annotations

import math

import pytest
import torch

from lydian.objectives.preference_anchored import apo_down, apo_zero, nca, sppo

IDS, PAIR, CHOSEN = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])


def value_and_gradient(loss, log_ratios, beta: float = 0.1) -> tuple[float, list[float]]:
    """Of one pair of one-token replies; the gradient of the pair's loss, not of its two sites together."""
    x = torch.tensor([value - 3.0 for value in log_ratios], requires_grad=True)
    got = loss(x, torch.full((2,), -3.0), IDS, PAIR, CHOSEN, beta=beta).loss
    got[0].backward()
    assert x.grad is not None
    return got[1].item(), x.grad.tolist()


@pytest.mark.parametrize(
    ("loss", "at_example", "at_start"),
    [
        (apo_zero, 0.9252, 1.0),  # 1 − σ(.2) + σ(−.1) = .450166 + .475021
        (apo_down, 0.9754, 1.0),  # σ(.2) + 1 − σ(.3) = .549834 + .425557
        (nca, 1.3194, 2 * math.log(2)),  # .598139 + ½·.798139 + ½·.644397
        (sppo, 25.0, 50.0),  # (2 − 5)² + (−1 + 5)²; 5² + 5²
    ],
)
def test_values(loss, at_example: float, at_start: float):
    assert value_and_gradient(loss, (2.0, -1.0))[0] == pytest.approx(at_example, abs=5e-5)
    assert value_and_gradient(loss, (0.0, 0.0))[0] == pytest.approx(at_start)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (apo_zero, (-0.25, 0.25)),  # ∓σ′(0)
        (apo_down, (0.0, 0.25)),  # chosen: σ′(0) − σ′(0) = 0; rejected: σ′(0)
        (nca, (-0.25, 0.25)),  # −½ + ½·½; ½·½
        (sppo, (-1.0, 1.0)),  # 2·(0 ∓ ½)
    ],
)
def test_first_gradients(loss, expected: tuple[float, float]):
    """At β = 1 from the reference."""
    assert value_and_gradient(loss, (0.0, 0.0), beta=1.0)[1] == pytest.approx(expected)


def test_apo_down_lowers_the_chosen_reply():
    """Once h > 0, σ′(h) < σ′(β Δ_w): chosen gradient σ′(.5) − σ′(2.5) = .2350 − .0701 > 0, so a step lowers it."""
    _, (chosen, _) = value_and_gradient(apo_down, (0.5, -2.0), beta=1.0)
    assert chosen == pytest.approx(0.1649, abs=1e-4)


def test_nca_holds_the_chosen_reply():
    """Slope in the chosen reward −σ(−r) + ½ σ(r) is zero where σ(r) = 2/3, r = log 2: it neither rises nor falls on."""
    _, (chosen, rejected) = value_and_gradient(nca, (math.log(2), -3.0), beta=1.0)
    assert chosen == pytest.approx(0, abs=1e-6)
    assert rejected > 0
