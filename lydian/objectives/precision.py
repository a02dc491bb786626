"""The numbers that objectives compute with: at least fp32, and log-probabilities that are finite."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

LOGPROB_FLOOR = -1e4
"""Log-probabilities are raised to this, so that a probability of 0 gives neither 0 · ∞ nor ∞ − ∞."""


def full_precision(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """bf16 and fp16 as fp32; fp32 and float64 as they are.

    >>> full_precision(torch.tensor([1.0], dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def constant(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The values in full precision, without gradients."""
    return full_precision(values).detach()


def finite_logprobs(logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Log-probabilities in full precision, at least LOGPROB_FLOOR; one below it gets no gradient. NaN stays NaN.

    >>> finite_logprobs(torch.tensor([-1.0, -torch.inf])).tolist()
    [-1.0, -10000.0]
    """
    return full_precision(logprobs).clamp(min=LOGPROB_FLOOR)
