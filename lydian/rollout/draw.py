"""Drawing tokens from logits by the inverse of the cumulative distribution, one given uniform number a token.

The random numbers of a completion are a function of (seed, problem, sample) alone, so the same sample comes out
whatever it is batched with, in whatever order, before or after a restart; up to the rounding of the logits themselves.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from lydian.data.trajectory import Sampling

AT_A_TIME = 1 << 20
"""Logits that are drawn from at a time: they stay in the processor's cache from the first pass to the last."""

BLOCK = 256
"""The cumulative sum runs over blocks of the vocabulary, then inside one: 49k entries cost two short passes."""


def uniforms(seed: int, problem_id: str, sample: int, num: int) -> np.ndarray:
    """`num` uniform numbers in [0, 1), the t-th for the t-th token, from a counter-based generator (Philox)."""
    key = hashlib.sha256(f"{seed}/{sample}/{problem_id}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype=np.uint64))).random(num)


def draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [n] and their log-probabilities [n] in nats under the sampling distribution.

    logits   [n, vocabulary]; overwritten
    uniform  [n] in [0, 1); not used when greedy

    Greedy takes the likeliest token, whose probability is then 1. Otherwise logits are divided by the temperature, in
    fp32; top-k, top-p and min-p then remove tokens, in this order, and what is left is normalised again.
    """
    rows = max(1, AT_A_TIME // logits.shape[1])
    parts = zip(logits.split(rows), uniform.split(rows), strict=True)
    tokens, logprobs = zip(*(_draw(some.float(), sampling, numbers) for some, numbers in parts), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _draw(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    if sampling.is_greedy:
        tokens = logits.argmax(-1)
        return tokens, torch.zeros(len(tokens), device=logits.device)
    if sampling.temperature != 1:
        logits.div_(sampling.temperature)
    if sampling.truncates_support:
        logits = _truncate(logits, sampling)
    probs = logits.softmax(-1)
    tokens = _inverse_cdf(probs, uniform.to(probs.device))
    return tokens, probs.gather(1, tokens[:, None]).squeeze(1).log_()


def _truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    if sampling.top_k:
        kth = logits.topk(min(sampling.top_k, logits.shape[1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(descending=True, stable=True)
        probs = ordered.softmax(-1)
        is_dropped = probs.cumsum(-1) - probs >= sampling.top_p  # the mass before a token already suffices
        logits = logits.masked_fill(torch.zeros_like(is_dropped).scatter(1, order, is_dropped), -torch.inf)
    if sampling.min_p:
        limit = logits.max(-1, keepdim=True).values + float(np.log(sampling.min_p))
        logits = logits.masked_fill(logits < limit, -torch.inf)
    return logits


def _inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative probability exceeds `uniform`; never one of probability zero."""
    n, size = probs.shape
    if size % BLOCK:
        probs = torch.nn.functional.pad(probs, (0, -size % BLOCK))
    blocks = probs.view(n, -1, BLOCK)
    cumulative = blocks.sum(-1).double().cumsum(-1)
    target = uniform.double() * cumulative[:, -1]
    block = _first_above(cumulative, target)
    rows = torch.arange(n, device=probs.device)
    before = torch.nn.functional.pad(cumulative, (1, 0))[rows, block]
    return block * BLOCK + _first_above(blocks[rows, block].double().cumsum(-1), target - before)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first index in each row whose value exceeds the target, which rounding may have put at the very end."""
    total = cumulative[:, -1]
    below = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, below[:, None], right=True).squeeze(1)
