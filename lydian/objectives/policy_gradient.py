"""Policy-gradient losses per token. The advantage is a constant; only `logprobs` carries gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lydian.objectives.divergence import k1, k3, ratio_of
from lydian.objectives.loss import Loss


def reinforce(logprobs: Float[Tensor, " n"], advantage: Float[Tensor, " n"]) -> Loss:
    """REINFORCE, −A_t log π(y_t).

    logprobs   [n] log π of each sampled token under the current policy, in nats
    advantage  [n] A, constant

    Source: Williams (1992), "Simple statistical gradient-following algorithms", eq. 3.

    >>> reinforce(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, -0.5])).loss.tolist()
    [1.0, -1.0]
    """
    return Loss(-advantage * logprobs, {})


def clip(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Loss:
    """Clipped surrogate of PPO and GRPO, −min(r A, clamp(r, 1 − ε_low, 1 + ε_high) A) with r = π / π_proximal.

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy: the clip's anchor, fixed during an update
    advantage          [n] A, constant
    clip_low           ε_low ≥ 0: how far the ratio may fall before a negative advantage stops pushing
    clip_high          ε_high ≥ 0: how far it may rise before a positive advantage stops pushing

    Statistics: ratio; clipped_low and clipped_high, the share of tokens whose gradient the lower or upper bound
    removed; kl_k1 and kl_k3, estimates of KL(proximal ‖ current) in nats a token.

    Source: Schulman et al. (2017), arXiv:1707.06347, eq. 7; asymmetric range: DAPO, arXiv:2503.14476, eq. 10.

    >>> proximal, current = torch.tensor([0.25, 0.30, 0.50]).log(), torch.tensor([0.40, 0.60, 0.30]).log()
    >>> (-clip(current, proximal, torch.tensor([0.5, -0.5, -0.5])).loss).tolist()
    [0.6000000238418579, -1.0, -0.4000000059604645]
    """
    proximal_logprobs = proximal_logprobs.detach()
    ratio = ratio_of(logprobs - proximal_logprobs)
    clamped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantage, clamped * advantage)
    with torch.no_grad():
        statistics = {
            "ratio": ratio.detach(),
            "clipped_low": ((ratio < 1 - clip_low) & (advantage < 0)).float(),
            "clipped_high": ((ratio > 1 + clip_high) & (advantage > 0)).float(),
            "kl_k1": k1(proximal_logprobs, logprobs.detach()),
            "kl_k3": k3(proximal_logprobs, logprobs.detach()),
        }
    return Loss(loss, statistics)
