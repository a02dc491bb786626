"""What a learner trains on: token ids with per-token facts. `Sequence` is unshifted: entry t speaks of token t."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from lydian.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Tokens, which of them are trained, and numbers that belong to them.

    id        unique within a step
    group     sequences with the same group are planted in one tree and share their common prefix
    tokens    [T] ids
    trained   [T] True where the token is a target of the loss; the first token never is (nothing predicts it)
    streams   name → [T] numbers, one a token (advantage, behaviour_logprobs, …); read only where `trained`
    facts     name → one number for the whole sequence (pair, is_chosen, score, …)
    temperature  the temperature the tokens were sampled at; 1 for text that was not sampled
    versions  run-length (count, version) over the trained tokens; empty for text that was not sampled

    Example: prompt (7, 8) and answer (9, 2): `Sequence(id="a/0", group="a", tokens=(7, 8, 9, 2),
    trained=(False, False, True, True), streams={"advantage": (0, 0, 1.5, 1.5)})`
    """

    id: str
    group: str
    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    streams: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    versions: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        length = len(self.tokens)
        _require(self.id, f"{length} tokens", length >= 2, "at least two tokens: one to predict from, one to predict")
        lengths = {"trained": len(self.trained)} | {name: len(values) for name, values in self.streams.items()}
        wrong = {name: n for name, n in lengths.items() if n != length}
        _require(self.id, wrong, not wrong, f"streams as long as the tokens ({length})")
        _require(self.id, "a trained first token", not self.trained[0], "a first token that is not trained")
        _require(self.id, "no trained token", any(self.trained), "at least one trained token")
        _require(self.id, f"temperature {self.temperature}", self.temperature > 0, "a temperature > 0")
        for name, values in self.streams.items():
            finite = all(math.isfinite(v) for v, used in zip(values, self.trained, strict=True) if used)
            _require(self.id, f"a value that is not finite in {name!r}", finite, "finite numbers on trained tokens")

    @property
    def num_trained(self) -> int:
        return sum(self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A chosen and a rejected sequence with the same prompt; they stay together through every split of a step."""

    chosen: Sequence
    rejected: Sequence

    def __post_init__(self) -> None:
        same = self.chosen.group == self.rejected.group and self.chosen.id != self.rejected.id
        _require(self.chosen.id, f"groups {self.chosen.group!r}, {self.rejected.group!r}", same, "one group, two ids")


def num_common(sequences: Seq[tuple[int, ...]]) -> int:
    """How many tokens all sequences, of which there is one at least, begin with.

    >>> num_common([(5, 6, 7), (5, 6), (5, 6, 8)])
    2
    """
    first, last = min(sequences), max(sequences)  # all others lie between them
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _require(sequence_id: str, given: object, holds: bool, expected: str) -> None:
    if not holds:
        raise InputError(
            where=f"sequence {sequence_id!r}",
            given=str(given),
            expected=expected,
            fix="`lydian show` prints a sample token by token; look at how this one was built.",
        )
