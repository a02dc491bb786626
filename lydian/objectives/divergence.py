"""Estimators of KL(sampler ‖ other) from tokens drawn by the sampler.

With d = log π_other − log π_sampler at a drawn token:  k1 = −d (unbiased, may be negative), k2 = d²/2 (biased value;
its gradient is the right one when it stands in a loss), k3 = e^d − 1 − d (unbiased, never negative; as a loss its
gradient is that of the other KL). Source: J. Schulman, "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ±this before `exp`: e^20 ≈ 5·10⁸ is finite in fp32 with room for products."""


def ratio_of(log_ratio: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """exp(log_ratio), with the log-ratio clamped to ±LOG_RATIO_LIMIT so that loss and gradient stay finite."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def k1(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log π_sampler − log π_other: unbiased for KL(sampler ‖ other), per token, in nats.

    >>> import torch
    >>> k1(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.5]
    """
    return sampler_logprobs - other_logprobs


def k2(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """(log π_sampler − log π_other)² / 2.

    >>> import torch
    >>> k2(torch.tensor([-1.0]), torch.tensor([-1.5])).tolist()
    [0.125]
    """
    return 0.5 * (sampler_logprobs - other_logprobs) ** 2


def k3(sampler_logprobs: Float[Tensor, " n"], other_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """e^d − 1 − d with d = log π_other − log π_sampler: unbiased and never negative.

    >>> import torch
    >>> round(k3(torch.tensor([-1.0]), torch.tensor([-2.0])).item(), 4)
    0.3679
    """
    difference = other_logprobs - sampler_logprobs
    return ratio_of(difference) - 1 - difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
