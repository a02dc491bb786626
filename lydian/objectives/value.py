"""Losses of a value function (critic) against the returns. Only `value` carries gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss

from lydian.objectives.loss import Loss
from lydian.objectives.precision import constant, full_precision


def value_squared(value: Float[Tensor, " n"], returns: Float[Tensor, " n"]) -> Loss:
    """Squared error of the value, ½ (V_t − R_t)².

    value    [n] V, prediction before each token, in units of reward
    returns  [n] R, its target: advantage plus the value at collection, or the discounted return; constant

    Statistics: value_error, V − R. Use: first choice. Trap: targets of large scale swamp the policy's gradient in
    shared weights. Source: Mnih et al. (2016), "A3C", arXiv:1602.01783.

    >>> value_squared(torch.tensor([2.0]), torch.tensor([3.0])).loss.tolist()
    [0.5]
    """
    error = full_precision(value) - constant(returns)
    return Loss(0.5 * error**2, {"value_error": error.detach()})


def value_clipped(
    value: Float[Tensor, " n"],
    old_value: Float[Tensor, " n"],
    returns: Float[Tensor, " n"],
    *,
    value_clip: float = 0.2,
) -> Loss:
    """PPO's clipped value loss, ½ max((V_t − R_t)², (V_old + clamp(V_t − V_old, ±ε) − R_t)²).

    value       [n] V, prediction before each token, in units of reward
    old_value   [n] V_old, the prediction when the tokens were collected; constant
    returns     [n] R, its target; constant
    value_clip  ε > 0, in units of reward: how far V may move from V_old within an update and still gain

    Statistics: value_error, V − R; value_clipped, share of tokens whose gradient the clip removed. Use: to reproduce
    PPO as first run. Trap: ε is absolute: with rewards of scale 100 the default freezes the critic.
    Source: Schulman et al., openai/baselines ppo2 (2017); Engstrom et al. (2020), arXiv:2005.12729.

    >>> round(value_clipped(torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([3.0])).loss.item(), 4)
    1.62
    """
    value, old_value, returns = full_precision(value), constant(old_value), constant(returns)
    error = value - returns
    bounded = old_value + (value - old_value).clamp(-value_clip, value_clip) - returns
    is_clipped = ((value - old_value).abs() > value_clip) & (bounded**2 > error**2)
    loss = 0.5 * torch.maximum(error**2, bounded**2)
    return Loss(loss, {"value_error": error.detach(), "value_clipped": is_clipped.float()})


def value_huber(value: Float[Tensor, " n"], returns: Float[Tensor, " n"], *, delta: float = 1.0) -> Loss:
    """Huber loss of the value, ½ e² for |e| ≤ δ and δ (|e| − δ/2) beyond, with e = V_t − R_t.

    value    [n] V, prediction before each token, in units of reward
    returns  [n] R, its target; constant
    delta    δ > 0, in units of reward: from this error on the gradient grows no further

    Statistics: value_error, V − R. Use: where rare returns lie far out. Trap: far out it fits the median, not the mean,
    so advantages of skewed returns are biased. Source: Huber (1964), "Robust estimation of a location parameter".

    >>> value_huber(torch.tensor([2.0, 2.5]), torch.tensor([5.0, 3.0]), delta=1.0).loss.tolist()
    [2.5, 0.125]
    """
    value, returns = full_precision(value), constant(returns)
    loss = huber_loss(value, returns, reduction="none", delta=delta)
    return Loss(loss, {"value_error": (value - returns).detach()})
