"""Estimators of KL(sampler ‖ other) from tokens drawn by the sampler, and the one way to exponentiate a log-ratio.

With d = log π_other − log π_sampler at a drawn token, in nats, and the sampler as the policy in training:

| estimator          | value    | gradient as reward (−β k in the reward) | gradient as loss (+β k in the loss)     |
|--------------------|----------|------------------------------------------|------------------------------------------|
| k1 = −d            | unbiased | unbiased                                 | zero on average: only noise              |
| k2 = d²/2          | biased   | biased                                   | unbiased                                 |
| k3 = e^d − 1 − d   | unbiased | ∇KL(s ‖ o) − ∇KL(o ‖ s): biased          | ∇KL(o ‖ s): that of the other direction  |
| straight_through   | unbiased | as the value it shows, k1 or k3          | unbiased                                 |

Why. E[−d] is the definition of KL, and E[e^d − 1] = Σ π_other − 1 = 0 adds nothing to it but makes k3 ≥ 0. As reward
only the value counts: the gradient is E[k ∇log π_s], and ∇KL(s ‖ o) = E[−d ∇log π_s] asks for k = k1. As loss the
sampling is not differentiated: ∇k1 = ∇log π_s averages to 0, ∇k2 = −d ∇log π_s is exactly right, and
∇k3 = (1 − e^d) ∇log π_s is ∇KL(o ‖ s).

The values need π_sampler > 0 wherever π_other > 0. The gradients need tokens of the current policy; tokens of an older
one need the importance ratio as a factor. A loss per token leaves out how a token moves the KL of the tokens after it:
for the gradient of the KL of whole sequences take k1 as reward, summed over the tokens that follow.

Sources: J. Schulman, "Approximating KL Divergence" (2020); Tang & Munos (2025), arXiv:2506.09477; Liu et al. (2025),
"Rethinking KL Regularization in RLHF", arXiv:2510.01555.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from lydian.objectives.precision import finite_logprobs

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±this before `exp`: e^20 ≈ 5·10⁸ is finite in fp32 with room for products."""


def ratio_of(log_ratio: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """exp(log_ratio), with the log-ratio clamped to ±LOG_RATIO_LIMIT so that loss and gradient stay finite.

    Beyond the limit the gradient is zero.

    >>> import torch
    >>> [round(ratio, 4) for ratio in ratio_of(torch.tensor([0.0, 0.5])).tolist()]
    [1.0, 1.6487]
    """
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k1(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log π_sampler − log π_other: unbiased for KL(sampler ‖ other), per token, in nats.

    sampler_logprobs  [n] log π of each token under the policy that drew it, in nats
    other_logprobs    [n] the same under the policy compared with

    Use: in the reward, where it is the one with the right gradient. Trap: as a loss its gradient is zero on average.
    Source: J. Schulman, "Approximating KL Divergence" (2020).

    >>> import torch
    >>> k1(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.5]
    """
    return finite_logprobs(sampler_logprobs) - finite_logprobs(other_logprobs)


def k2(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """(log π_sampler − log π_other)² / 2, per token: biased in value, right in gradient when it is a loss.

    sampler_logprobs  [n] log π of each token under the policy that drew it, in nats
    other_logprobs    [n] the same under the policy compared with

    Use: as a loss. Trap: its value is not the KL; report k1 or k3.
    Source: J. Schulman, "Approximating KL Divergence" (2020).

    >>> import torch
    >>> k2(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.125]
    """
    return 0.5 * k1(sampler_logprobs, other_logprobs) ** 2


def k3(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """e^d − 1 − d with d = log π_other − log π_sampler, per token: unbiased and never negative.

    sampler_logprobs  [n] log π of each token under the policy that drew it, in nats
    other_logprobs    [n] the same under the policy compared with

    d is clamped to ±20. Use: to report a KL with little noise. Trap: as a loss (GRPO's usual form) its gradient is that
    of KL(other ‖ sampler). Source: J. Schulman, "Approximating KL Divergence" (2020).

    >>> import torch
    >>> round(k3(torch.tensor([-1.0]), torch.tensor([-2.0])).item(), 4)
    0.3679
    """
    difference = (-k1(sampler_logprobs, other_logprobs)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return ratio_of(difference) - 1 - difference


def straight_through(
    sampler_logprobs: Float[Tensor, " n"],
    other_logprobs: Float[Tensor, " n"],
    *,
    value: Literal["k1", "k3"] = "k3",
) -> Float[Tensor, " n"]:
    """sg[k] + k2 − sg[k2]: the unbiased value of k = k1 or k3 with the unbiased gradient of k2 (sg: no gradient).

    sampler_logprobs  [n] log π of each token under the policy that drew it, in nats
    other_logprobs    [n] the same under the policy compared with
    value             k3 shows little noise and no negative numbers, k1 is exact however far the policies are apart

    Use: the KL as a loss, with a number to log that is the KL. Source: Tang & Munos (2025), arXiv:2506.09477;
    Liu et al. (2025), arXiv:2510.01555.

    >>> import torch
    >>> current = torch.tensor([-1.0], requires_grad=True)
    >>> penalty = straight_through(current, torch.tensor([-2.0]))
    >>> penalty.sum().backward(); round(penalty.item(), 4), current.grad.item()
    (0.3679, 1.0)
    """
    shown = (k1 if value == "k1" else k3)(sampler_logprobs, other_logprobs).detach()
    trained = k2(sampler_logprobs, other_logprobs)
    return shown + (trained - trained.detach())
