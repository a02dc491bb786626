"""What a policy sampled: `Sampling`, `Completion`, `Turn`, `Trajectory`. Token ids only; text never enters here.

Facts are recorded where they arise: the distribution a token was drawn from (`Sampling`), its log-probability under
exactly that distribution, the weight version that drew it, and why the completion ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from lydian.errors import InputError


class Finish(StrEnum):
    """Why a completion ended: a stop token or stop string, the token limit, or an abort from outside."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The distribution that completions are drawn from, and where they stop.

    temperature  0 is greedy; otherwise logits are divided by it
    top_p        smallest set of tokens with at least this probability mass; 1 keeps all
    top_k        the k most likely tokens; 0 keeps all
    min_p        tokens at least this share as likely as the likeliest; 0 keeps all
    max_tokens   limit on new tokens
    stop         strings that end a completion (kept in it); the model's stop tokens always end it
    seed         with the problem's id and the sample's index it fixes the random numbers of each completion
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _require("Sampling.temperature", self.temperature, self.temperature >= 0, "a number ≥ 0")
        _require("Sampling.top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _require("Sampling.top_k", self.top_k, self.top_k >= 0, "an integer ≥ 0 (0 keeps all)")
        _require("Sampling.min_p", self.min_p, 0 <= self.min_p < 1, "a number in [0, 1)")
        _require("Sampling.max_tokens", self.max_tokens, self.max_tokens >= 1, "an integer ≥ 1")
        _require("Sampling.stop", self.stop, all(self.stop), "non-empty strings")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates_support(self) -> bool:
        """True if some tokens cannot be drawn: the learner's full-vocabulary logprobs are then another distribution."""
        return self.is_greedy or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens drawn from a policy.

    tokens    ids, the stop token included
    logprobs  one a token: log-probability in nats under `sampling` (after temperature and truncation; 0 when greedy)
    versions  run-length (count, version): which weight version drew how many tokens, in order

    Example: `Completion(tokens=(5, 2), logprobs=(-0.7, -0.1), sampling=Sampling(), versions=((2, 0),),
    finish=Finish.STOP)`
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling: Sampling
    versions: tuple[tuple[int, int], ...]
    finish: Finish

    def __post_init__(self) -> None:
        n = len(self.tokens)
        _require("Completion.tokens", self.tokens, n > 0 or self.finish is Finish.ABORT, "at least one token")
        _require("Completion.logprobs", len(self.logprobs), len(self.logprobs) == n, f"one logprob a token ({n})")
        counted = sum(count for count, _ in self.versions)
        _require("Completion.versions", self.versions, counted == n, f"run lengths that sum to {n}")
        finite = all(math.isfinite(x) and x <= 1e-4 for x in self.logprobs)
        _require("Completion.logprobs", "a value that is not finite or is positive", finite, "finite values ≤ 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: the context tokens that are new since the last turn, then what the policy sampled."""

    context: tuple[int, ...]
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Turns in order; concatenating their contexts and completions gives exactly the tokens that the policy saw."""

    problem_id: str
    sample: int
    turns: tuple[Turn, ...]

    def __post_init__(self) -> None:
        _require("Trajectory.turns", "none", bool(self.turns), "at least one turn")
        _require("Trajectory.turns[0].context", "no tokens", bool(self.turns[0].context), "a prompt")

    def extend(self, turn: Turn) -> Trajectory:
        """A longer trajectory; what was there stays as it was."""
        return Trajectory(problem_id=self.problem_id, sample=self.sample, turns=(*self.turns, turn))

    def fork(self, num_turns: int) -> Trajectory:
        """The first `num_turns` turns, to go on differently from there."""
        return Trajectory(problem_id=self.problem_id, sample=self.sample, turns=self.turns[:num_turns])

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(t for turn in self.turns for t in (*turn.context, *turn.completion.tokens))

    @property
    def finish(self) -> Finish:
        return self.turns[-1].completion.finish

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.completion.tokens) for turn in self.turns)


def _require(where: str, given: object, holds: bool, expected: str) -> None:
    if not holds:
        raise InputError(where=where, given=repr(given), expected=expected, fix="Correct the value where it is set.")
