"""Log-probabilities and entropies of chosen tokens from hidden states, without ever holding [sites, vocabulary]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time, in the type of the product: 32 MiB in bf16, 64 in fp32. Fewer rows multiply slower."""

CACHE_ELEMENTS = 1 << 21
"""Of these, what a CPU converts, exponentiates and sums at a time: 8 MiB in fp32 stay in its cache over all passes."""


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
    hidden, output = _in_autocast_type(hidden, output)
    result = torch.empty(len(hidden), device=hidden.device)
    for rows, products in _products(hidden, output, chunk_elements):
        for part, logits, _ in _logits(products, rows, temperature):
            normaliser = logits.logsumexp(-1)
            result[part] = logits.mul_(2).logsumexp(-1) - 2 * normaliser
    return result


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, output: Tensor, target: Tensor, temperature: Tensor, chunk_elements: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.chunk_elements = chunk_elements
        ctx.dtypes = hidden.dtype, output.dtype
        hidden, output = _in_autocast_type(hidden, output)  # the backward pass, outside of autocast, must make the same
        logprobs, entropy, normaliser = torch.empty(3, len(hidden), device=hidden.device).unbind()
        for rows, products in _products(hidden, output, chunk_elements):
            for part, logits, _ in _logits(products, rows, temperature):
                highest = logits.amax(-1, keepdim=True)
                mass = (logits - highest).exp_()
                total = mass.sum(-1)
                normaliser[part] = highest.squeeze(1) + total.log()
                logprobs[part] = logits.gather(1, target[part, None]).squeeze(1) - normaliser[part]
                entropy[part] = normaliser[part] - torch.linalg.vecdot(mass, logits) / total
        ctx.save_for_backward(hidden, output, target, temperature, normaliser, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, output, target, temperature, normaliser, entropy = ctx.saved_tensors
        zeros = torch.zeros_like(normaliser)
        of_logprob, of_entropy = (zeros if grad is None else grad / temperature for grad in grads)
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_output = torch.zeros_like(output, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows, products in _products(hidden, output, ctx.chunk_elements):
            for part, logits, product in _logits(products, rows, temperature):
                logprobs = logits.sub_(normaliser[part, None])
                # dlogp(y)/dlogit = 1[y] − p; dH/dlogit = −p (log p + H)
                factor = -of_logprob[part, None]
                if grads[1] is not None:
                    factor = (logprobs + entropy[part, None]).mul_(-of_entropy[part, None]).add_(factor)
                grad_logits = logprobs.exp_().mul_(factor).scatter_add_(1, target[part, None], of_logprob[part, None])
                product.copy_(grad_logits)  # the chunk's gradient takes the place of its products
            if grad_hidden is not None:
                torch.mm(products, output, out=grad_hidden[rows])
            if grad_output is not None:
                _add_product(grad_output, products.T, hidden[rows])
        hidden_dtype, output_dtype = ctx.dtypes
        grad_hidden = grad_hidden.to(hidden_dtype) if grad_hidden is not None else None
        return grad_hidden, grad_output.to(output_dtype) if grad_output is not None else None, None, None, None


def _in_autocast_type(hidden: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden, output
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), output.to(dtype)


def _products(hidden: Tensor, output: Tensor, chunk_elements: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows, and hidden[rows] · outputᵀ in a buffer that the next chunk overwrites."""
    num_rows = max(1, chunk_elements // output.shape[0])
    buffer = hidden.new_empty(min(num_rows, len(hidden)), output.shape[0])
    for rows in _slices(0, len(hidden), num_rows):
        yield rows, torch.mm(hidden[rows], output.T, out=buffer[: rows.stop - rows.start])


def _logits(products: Tensor, rows: slice, temperature: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some of the rows, their logits [k, v] in fp32 at their temperature, and their part of `products`.

    On a CPU all that is done to a row's logits is done while they are in its cache.
    """
    at_a_time = len(products) if products.is_cuda else max(1, CACHE_ELEMENTS // products.shape[1])
    for part in _slices(rows.start, rows.stop, at_a_time):
        product = products[part.start - rows.start : part.stop - rows.start]
        yield part, product.float().div_(temperature[part, None]), product


def _slices(start: int, stop: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, stop)) for first in range(start, stop, size))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a · b, where a product of bf16 matrices is rounded to bf16 first, as autocast's are."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
