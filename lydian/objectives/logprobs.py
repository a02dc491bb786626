"""Log-probabilities and entropies of chosen tokens from hidden states, without ever holding [sites, vocabulary]."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""Logits held at a time: 16 MiB in fp32, less than what glibc asks the system for anew at each allocation (32 MiB)."""


def token_logprobs(
    hidden: Float[Tensor, "n d"],
    output: Float[Tensor, "v d"],
    target: Int[Tensor, " n"],
    temperature: Float[Tensor, " n"],
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """log π(target) and entropy, in nats, of π = softmax(hidden · outputᵀ / temperature), row by row.

    hidden       [n, d] the hidden states that predict
    output       [v, d] the output matrix (unembedding)
    target       [n] the predicted token ids
    temperature  [n] > 0, the temperature that the tokens were sampled at

    Returns (logprobs [n], entropy [n]) in fp32, both differentiable in `hidden` and `output`. Logits are made in chunks
    of rows and made again in the backward pass; at most `chunk_elements` of them exist at a time.
    """
    logprobs, entropy = _TokenLogprobs.apply(hidden, output, target, temperature, chunk_elements)
    return logprobs, entropy


@torch.no_grad()
def log_collision(
    hidden: Float[Tensor, "n d"],
    output: Float[Tensor, "v d"],
    temperature: Float[Tensor, " n"],
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Float[Tensor, " n"]:
    """log Σ_v π(v)², the log-probability that two draws of π = softmax(hidden · outputᵀ / temperature) agree. Constant.

    hidden, output, temperature, chunk_elements  as in `token_logprobs`

    >>> log_collision(torch.zeros(1, 2), torch.ones(4, 2), torch.ones(1)).exp().tolist()  # uniform over 4
    [0.25]
    """
    num_rows = max(1, chunk_elements // output.shape[0])
    parts = [hidden.new_zeros(0, dtype=torch.float32)]
    for hidden_rows, temperature_rows in _chunks(num_rows, hidden, temperature):
        logits = _logits(hidden_rows, output, temperature_rows)
        normaliser = logits.logsumexp(-1)
        parts.append(logits.mul_(2).logsumexp(-1) - 2 * normaliser)
    return torch.cat(parts)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, output: Tensor, target: Tensor, temperature: Tensor, chunk_elements: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.num_rows = max(1, chunk_elements // output.shape[0])
        ctx.dtypes = hidden.dtype, output.dtype
        device = hidden.device.type
        if torch.is_autocast_enabled(device):  # the backward pass must make the same logits again, outside of autocast
            hidden, output = (x.to(torch.get_autocast_dtype(device)) for x in (hidden, output))
        parts = [_forward_chunk(output, *rows) for rows in _chunks(ctx.num_rows, hidden, target, temperature)]
        empty = hidden.new_zeros(0, dtype=torch.float32)
        logprobs, entropy, normaliser = (
            (torch.cat(column) for column in zip(*parts, strict=True)) if parts else [empty] * 3
        )
        ctx.save_for_backward(hidden, output, target, temperature, normaliser, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, output, target, temperature, normaliser, entropy = ctx.saved_tensors
        zeros = torch.zeros_like(normaliser)
        of_logprob, of_entropy = (zeros if grad is None else grad / temperature for grad in grads)
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_output = torch.zeros_like(output, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.num_rows):
            rows = slice(start, start + ctx.num_rows)
            logprobs = _logits(hidden[rows], output, temperature[rows]).sub_(normaliser[rows, None])
            # dlogp(y)/dlogit = 1[y] − p; dH/dlogit = −p (log p + H)
            factor = -of_logprob[rows, None]
            if grads[1] is not None:
                factor = (logprobs + entropy[rows, None]).mul_(-of_entropy[rows, None]).add_(factor)
            grad_logits = logprobs.exp_().mul_(factor).scatter_add_(1, target[rows, None], of_logprob[rows, None])
            if grad_hidden is not None:
                grad_hidden[rows] = grad_logits.to(output.dtype) @ output
            if grad_output is not None:
                grad_output.addmm_(grad_logits.T, hidden[rows].float())
        hidden_dtype, output_dtype = ctx.dtypes
        grad_hidden = grad_hidden.to(hidden_dtype) if grad_hidden is not None else None
        return grad_hidden, grad_output.to(output_dtype) if grad_output is not None else None, None, None, None


def _logits(hidden: Tensor, output: Tensor, temperature: Tensor) -> Tensor:
    return (hidden @ output.T).float().div_(temperature[:, None])


def _forward_chunk(
    output: Tensor, hidden: Tensor, target: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    logits = _logits(hidden, output, temperature)
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(1, target[:, None]).squeeze(1) - normaliser
    expected_logit = (logits.sub(normaliser[:, None]).exp_() * logits).sum(-1)
    return logprobs, normaliser - expected_logit, normaliser


def _chunks(num_rows: int, *tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    return zip(*(tensor.split(num_rows) for tensor in tensors if tensor.numel()), strict=True)
