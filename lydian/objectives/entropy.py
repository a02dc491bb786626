"""Entropy of the policy: a bonus in the loss, and a coefficient that steers to a target."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lydian.objectives.loss import Loss
from lydian.objectives.precision import full_precision


def entropy_bonus(entropy: Float[Tensor, " n"], *, coef: float = 0.001) -> Loss:
    """Entropy bonus, −c H_t; added to a policy-gradient loss.

    entropy  [n] H of the current policy's distribution at each site, exact over the vocabulary, in nats; with gradients
    coef     c, per nat: above 0 spreads the policy, below 0 sharpens it

    Statistics: entropy. Use: against early collapse. Trap: a fixed coefficient that helps at the start can blow the
    entropy up later; see `next_entropy_coef`. Source: Williams & Peng (1991); Mnih et al. (2016), arXiv:1602.01783.

    >>> import torch
    >>> entropy_bonus(torch.tensor([0.5, 2.0]), coef=0.1).loss.tolist()
    [-0.05, -0.2]
    """
    entropy = full_precision(entropy)
    return Loss(-coef * entropy, {"entropy": entropy.detach()})


def next_entropy_coef(
    coef: float,
    measured: float,
    *,
    target: float = 0.2,
    delta: float = 0.005,
    min_coef: float = 0.0,
    max_coef: float = 1.0,
) -> float:
    """Coefficient of the next step: c + Δ while the measured entropy is below its target, c − Δ while it is above.

    coef                 c of this step, 0 at the start
    measured             mean entropy of the step's trained tokens, in nats
    target               wanted entropy, in nats a token
    delta                Δ > 0, change a step
    min_coef, max_coef   bounds of the result

    Skywork-OR1 also drops the bonus in every step whose measured entropy is above the target, whatever c is.
    Source: He et al. (2025), "Skywork Open Reasoner 1", arXiv:2505.22312.

    >>> next_entropy_coef(0.01, 0.15), next_entropy_coef(0.01, 0.3), next_entropy_coef(0.0, 0.3)
    (0.015, 0.005, 0.0)
    """
    direction = (measured < target) - (measured > target)
    return min(max(coef + delta * direction, min_coef), max_coef)
