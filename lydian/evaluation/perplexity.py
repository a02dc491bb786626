"""Perplexity of a text: per token (of one tokenizer only) and per byte, which compares models of any tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from lydian.data.forest import plant
from lydian.data.sequence import Sequence
from lydian.errors import InputError
from lydian.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """How surprised a model is by a text.

    nats        −Σ log π(token), over every token of the text
    num_tokens  tokens of the text in this model's tokenizer
    num_bytes   bytes of the text in UTF-8
    window      tokens of a window; the first half of each but the first is context only
    """

    nats: float
    num_tokens: int
    num_bytes: int
    window: int

    @property
    def per_token(self) -> float:
        """exp(nats / tokens): compares models of one tokenizer."""
        return math.exp(self.nats / self.num_tokens)

    @property
    def per_byte(self) -> float:
        """exp(nats / bytes): compares models of any tokenizer."""
        return math.exp(self.nats / self.num_bytes)

    @property
    def bits_per_byte(self) -> float:
        """nats / (bytes · ln 2)."""
        return self.nats / (self.num_bytes * math.log(2))


def perplexity(policy: Policy, tokens: Seq[int], *, start: int, num_bytes: int, window: int = 512) -> Perplexity:
    """The perplexity of a text under a policy, each token predicted once, from at least half a window of context.

    tokens     ids of the text, without special tokens
    start      a token to predict the first one from (BOS, else EOS): so that no token and no byte is left out
    num_bytes  of the text in UTF-8
    window     W: windows overlap by ⌊W/2⌋ tokens. Numbers of different windows do not compare

    Raises InputError for no tokens, or a window below 2.
    Source: bits per byte as in arXiv:2101.00027, section 3.1.
    """
    if not tokens or window < 2 or num_bytes < 1:
        raise InputError(
            where="perplexity",
            given=f"{len(tokens)} tokens, {num_bytes} bytes, window {window}",
            expected="a text, and a window of at least 2 tokens",
            fix="Check the file and the window.",
        )
    sequences = _windows((start, *tokens), window)
    weights = {sequence.id: 1.0 for sequence in sequences}
    nats = 0.0
    with torch.no_grad():
        for forest in plant(sequences, weights, layout="single", row_tokens=window, batch_tokens=8 * window):
            logprobs, _ = policy.logprobs(forest.to(policy.device))
            nats -= logprobs.double().sum().item()
    return Perplexity(nats=nats, num_tokens=len(tokens), num_bytes=num_bytes, window=window)


def _windows(tokens: tuple[int, ...], window: int) -> list[Sequence]:
    """Windows of at most `window` tokens; in each, those are trained that no window before predicted."""
    stride = max(1, window - window // 2)
    sequences, predicted, begin = [], 1, 0
    while predicted < len(tokens):
        part = tokens[begin : begin + window]
        trained = tuple(begin + i >= predicted for i in range(len(part)))
        sequences.append(Sequence(id=str(begin), group=str(begin), tokens=part, trained=trained))
        predicted = begin + len(part)
        begin += stride
    return sequences
