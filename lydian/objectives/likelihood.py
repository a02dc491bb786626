"""Maximum likelihood."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lydian.objectives.loss import Loss


def nll(logprobs: Float[Tensor, " n"]) -> Loss:
    """Negative log-likelihood, −log π(y_t).

    logprobs  [n] log π of each trained token, in nats

    >>> import torch
    >>> nll(torch.tensor([-1.0, -0.5])).loss.tolist()
    [1.0, 0.5]
    """
    return Loss(-logprobs, {})
