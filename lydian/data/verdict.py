"""How a completion was judged: `Outcome`, `Verdict`, `Scored`, `Group`. Absence is not zero: some have no score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lydian.data.problems import Problem
from lydian.data.trajectory import Trajectory
from lydian.errors import VerifierError


class Outcome(StrEnum):
    """CORRECT and WRONG answers; UNPARSED, no answer found; TRUNCATED, none found and the token limit was hit;
    FAILED, the verifier itself broke or timed out (no score; never trained on, never counted as wrong)."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TRUNCATED = "truncated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One judgement of one completion.

    score      the reward, usually in [0, 1]; None exactly when the outcome is FAILED
    extracted  the answer that was read from the completion, or None
    parts      named components (format, content, …), kept apart whatever the score combines
    reason     one line for a person
    verifier   fingerprint of the verifier: name, settings, versions of what it stands on

    Example: `Verdict(score=1.0, outcome=Outcome.CORRECT, extracted="72", parts={"content": 1.0}, reason="72 = 72",
    verifier="numeric:1f0c…")`
    """

    score: float | None
    outcome: Outcome
    extracted: str | None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    verifier: str

    def __post_init__(self) -> None:
        if (self.score is None) != (self.outcome is Outcome.FAILED):
            raise VerifierError(
                where=f"verdict of {self.verifier}",
                given=f"outcome {self.outcome} with score {self.score}",
                expected="a score for every outcome but FAILED, and none for FAILED",
                fix="Return Outcome.FAILED with score=None when the verifier could not judge.",
            )

    @property
    def is_correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A trajectory and its verdict."""

    trajectory: Trajectory
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All samples for one problem in one round: the unit over which group baselines are computed."""

    problem: Problem
    members: tuple[Scored, ...]

    def __post_init__(self) -> None:
        strangers = {m.trajectory.problem_id for m in self.members} - {self.problem.id}
        verifiers = {m.verdict.verifier for m in self.members}
        if strangers or len(verifiers) > 1 or not self.members:
            raise VerifierError(
                where=f"group of {self.problem.id!r}",
                given=f"{len(self.members)} members, problems {sorted(strangers)}, verifiers {sorted(verifiers)}",
                expected="at least one member, all of this problem, judged by one verifier",
                fix="Form groups by problem id when the samples are drawn.",
            )

    @property
    def num_correct(self) -> int:
        return sum(m.verdict.is_correct for m in self.members)
