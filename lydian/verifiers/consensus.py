"""Rewards without gold answers: the majority of a group as the label, or the model's confidence in its own answer.

They judge all completions of a problem together (`score_group`), and so are verifiers that `verify_all` gives all items
at once. Their verdicts say how much a model agrees with itself, which may rise while it gets worse: their fingerprints
begin with `label_free/` and `parts` has `label_free`, so that no report takes such a score for accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish, Trajectory
from lydian.data.verdict import Group, Outcome, Scored, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers.verifier import LABEL_FREE, Example, Verifier, fingerprint, make_verifier, register

_Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion of a group.

    text      decoded from its tokens
    ends      how many characters of `text` the first 1, 2, … tokens make up
    logprobs  one a token, in nats
    """

    text: str
    finish: Finish
    ends: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.ends) != len(self.logprobs):
            raise VerifierError(
                where="Sample.logprobs",
                given=f"{len(self.logprobs)} logprobs for {len(self.ends)} tokens",
                expected="one a token",
                fix="Make samples from trajectories by `sample_of`.",
            )


@runtime_checkable
class TokenScorer(Protocol):
    """A verifier that reads the tokens of completions and their logprobs, where `score_groups` can give them."""

    name: str
    fingerprint: str
    needs_tokens: bool

    def score_group(self, problem: Problem, samples: Sequence[Sample]) -> list[Verdict]:
        """One verdict a sample, in order."""
        ...


class _LabelFree:
    """What both have in common: a problem needs no gold answer, and completions are judged with their group."""

    name: str
    fingerprint: str

    def __init__(self, inner: Mapping[str, Any], probe: str, **settings: float) -> None:
        if "name" not in inner:
            raise _bad(f"{self.name}.inner", dict(inner), 'a table such as {name = "numeric"}')
        self._inner = make_verifier(**inner)
        self.probe = probe
        described = {"inner": self._inner.fingerprint, "probe": probe, **settings}
        self.fingerprint = LABEL_FREE + fingerprint(self.name, described)

    def check(self, problem: Problem) -> None:
        self._inner.check(replace(problem, answer=self.probe))

    def score_group(self, problem: Problem, samples: Sequence[Sample]) -> list[Verdict]:
        raise NotImplementedError

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return self.verify_many([(problem, text, finish)])[0]

    def verify_many(self, items: Sequence[tuple[Problem, str, Finish]]) -> list[Verdict]:
        """A verdict an item; the items of one problem are a group. Their tokens are not known here."""
        groups: dict[str, list[int]] = {}
        for index, (problem, _, _) in enumerate(items):
            groups.setdefault(problem.id, []).append(index)
        verdicts: dict[int, Verdict] = {}
        for indices in groups.values():
            samples = [Sample(text=items[i][1], finish=items[i][2]) for i in indices]
            verdicts |= zip(indices, self.score_group(items[indices[0]][0], samples), strict=True)
        return [verdicts[i] for i in range(len(items))]


class Consensus(_LabelFree):
    """Label-free: a completion is CORRECT if its answer is the one that most of the group gave.

    Answers are read by an inner verifier and are the same where it judges one right with the other as gold, so that
    0.5 and 1/2 are two votes for one answer. Completions without an answer do not vote, and keep the inner
    outcome. If two answers share the lead, or the leader has one vote or less than `min_share` of all completions,
    there is no label and every answer is FAILED: without a score, never trained on. So is a completion judged alone.

    inner      table with the inner verifier's `name` and its settings
    probe      a gold answer that the inner verifier can read; answers are read off its verdicts on it
    min_share  the share of the group's completions that the majority must have

    `parts`: label_free 1, votes (for this answer) and share (of the leader, in the group).

    Source: Zuo et al., TTRL: Test-Time Reinforcement Learning, arXiv:2504.16084, section 2.2.

    >>> group = [Sample(text=text, finish=Finish.STOP) for text in ("1/2", "It is 0.5", "2")]
    >>> from lydian.verifiers.verifier import bare_problem
    >>> [v.score for v in Consensus(inner={"name": "numeric"}).score_group(bare_problem(None), group)]
    [1.0, 1.0, 0.0]
    """

    name = "consensus"

    def __init__(self, *, inner: Mapping[str, Any], probe: str = "0", min_share: float = 0.0) -> None:
        if not 0 <= min_share <= 1:
            raise _bad("consensus.min_share", min_share, "a share from 0 to 1")
        super().__init__(inner, probe, min_share=min_share)
        self.min_share = min_share

    def score_group(self, problem: Problem, samples: Sequence[Sample]) -> list[Verdict]:
        read = [_read(self._inner, problem, self.probe, sample) for sample in samples]
        classes = self._classes(problem, samples, read)
        counts = [classes.count(each) for each in classes]
        votes = [0 if verdict.extracted is None else count for verdict, count in zip(read, counts, strict=True)]
        most = max(votes, default=0)
        leaders = {each for each, count in zip(classes, votes, strict=True) if count == most}
        share = most / len(samples) if samples else 0.0
        has_label = most > 1 and len(leaders) == 1 and share >= self.min_share
        return [
            self._verdict(verdict, each in leaders if has_label else None, count, share)
            for verdict, each, count in zip(read, classes, votes, strict=True)
        ]

    def _classes(self, problem: Problem, samples: Sequence[Sample], read: Sequence[Verdict]) -> list[int]:
        """For each sample the index of the first one with the same answer; −1 where there is none."""
        firsts: dict[str, int] = {}
        classes: list[int] = []
        for index, (sample, verdict) in enumerate(zip(samples, read, strict=True)):
            answer = verdict.extracted
            if answer is not None and answer not in firsts:
                alike = (first for known, first in firsts.items() if self._agree(problem, known, sample))
                firsts[answer] = next(alike, index)
            classes.append(-1 if answer is None else firsts[answer])
        return classes

    def _agree(self, problem: Problem, answer: str, sample: Sample) -> bool:
        posed = replace(problem, answer=answer)
        try:
            self._inner.check(posed)
        except VerifierError:  # an answer that cannot serve as gold equals only itself, as text
            return False
        return self._inner.verify(posed, sample.text, sample.finish).is_correct

    def _verdict(self, read: Verdict, is_majority: bool | None, votes: int, share: float) -> Verdict:
        outcome, reason = read.outcome, read.reason
        if read.extracted is not None:
            lead = "the leader has" if is_majority is not None else "no majority: the leader has"
            reason = f"{votes} vote{'' if votes == 1 else 's'}, {lead} {share:.0%} of the group"
            named = {True: Outcome.CORRECT, False: Outcome.WRONG, None: Outcome.FAILED}
            outcome = named[is_majority]
        return Verdict(
            score=None if outcome is Outcome.FAILED else float(outcome is Outcome.CORRECT),
            outcome=outcome,
            extracted=read.extracted,
            parts={"label_free": 1.0, "votes": float(votes), "share": share},
            reason=reason,
            verifier=self.fingerprint,
        )


class SelfConfidence(_LabelFree):
    """Label-free: the model's own confidence in its answer, exp(mean logprob of the tokens that spell it).

    The span is where the answer that the inner verifier read stands last in the completion, blanks and thousands commas
    aside; a token that only touches it counts. Where it cannot be found the outcome is FAILED, and so it is wherever
    only texts are judged: stored completions, parts of other verifiers.

    inner       table with the inner verifier's `name` and its settings
    probe       a gold answer that the inner verifier can read; answers are read off its verdicts on it
    min_score   from this confidence (0 to 1) on the outcome is CORRECT

    `parts`: label_free 1, and mean_logprob in nats. Completions without an answer keep the inner outcome.

    Source: Li et al., Confidence Is All You Need, arXiv:2506.06395 (confidence as reward, here of the answer span).
    """

    name = "self_confidence"
    needs_tokens = True

    def __init__(self, *, inner: Mapping[str, Any], probe: str = "0", min_score: float = 0.5) -> None:
        if not 0 <= min_score <= 1:
            raise _bad("self_confidence.min_score", min_score, "a number from 0 to 1")
        super().__init__(inner, probe, min_score=min_score)
        self.min_score = min_score

    def score_group(self, problem: Problem, samples: Sequence[Sample]) -> list[Verdict]:
        return [self._score(problem, sample) for sample in samples]

    def _score(self, problem: Problem, sample: Sample) -> Verdict:
        read = _read(self._inner, problem, self.probe, sample)
        parts = {"label_free": 1.0}
        if read.extracted is None:
            return replace(read, parts=parts, verifier=self.fingerprint)
        logprobs = span_logprobs(sample, read.extracted)
        if not logprobs:
            reason = "the tokens of the answer were not found" if sample.ends else "no logprobs of tokens at hand"
            return replace(
                read, score=None, outcome=Outcome.FAILED, parts=parts, reason=reason, verifier=self.fingerprint
            )
        mean = math.fsum(logprobs) / len(logprobs)
        score = min(1.0, math.exp(mean))
        return Verdict(
            score=score,
            outcome=Outcome.CORRECT if score >= self.min_score else Outcome.WRONG,
            extracted=read.extracted,
            parts=parts | {"mean_logprob": mean},
            reason=f"confidence {score:.3f} over {len(logprobs)} tokens",
            verifier=self.fingerprint,
        )


def span_logprobs(sample: Sample, answer: str) -> tuple[float, ...]:
    """The logprobs of the tokens that touch the last occurrence of `answer`; none if it does not occur.

    >>> sample = Sample(text="So 1,000.", finish=Finish.STOP, ends=(2, 5, 9), logprobs=(-1.0, -0.2, -0.4))
    >>> span_logprobs(sample, "1000")
    (-0.2, -0.4)
    """
    places = [i for i, char in enumerate(sample.text) if not char.isspace() and char != ","]
    squeezed = "".join(sample.text[i] for i in places)
    wanted = "".join(char for char in answer if not char.isspace() and char != ",")
    found = squeezed.rfind(wanted) if wanted else -1
    if found < 0:
        return ()
    start, stop = places[found], places[found + len(wanted) - 1] + 1
    begins = (0, *sample.ends)[: len(sample.ends)]
    return tuple(
        logprob
        for begin, end, logprob in zip(begins, sample.ends, sample.logprobs, strict=True)
        if begin < stop and end > start
    )


def sample_of(trajectory: Trajectory, decode: _Decode) -> Sample:
    """The last completion of a trajectory as a sample; `decode` turns its ids into text."""
    completion = trajectory.turns[-1].completion
    tokens = completion.tokens
    ends = tuple(len(decode(tokens[: i + 1])) for i in range(len(tokens)))
    return Sample(text=decode(tokens), finish=completion.finish, ends=ends, logprobs=completion.logprobs)


def score_groups(
    problems: Sequence[Problem], trajectories: Sequence[Sequence[Trajectory]], decode: _Decode, scorer: TokenScorer
) -> list[Group]:
    """Scores each problem's trajectories with their tokens; one group a problem, as scoring by texts makes them.

    Raises VerifierError if a scorer does not return one verdict a sample.
    """
    groups = []
    for problem, members in zip(problems, trajectories, strict=True):
        verdicts = scorer.score_group(problem, [sample_of(trajectory, decode) for trajectory in members])
        if len(verdicts) != len(members):
            raise VerifierError(
                where=f"{scorer.name} on problem {problem.id!r}",
                given=f"{len(verdicts)} verdicts for {len(members)} samples",
                expected="one a sample",
                fix="Correct the scorer.",
            )
        scored = tuple(Scored(trajectory=t, verdict=v) for t, v in zip(members, verdicts, strict=True))
        groups.append(Group(problem=problem, members=scored))
    return groups


def _read(inner: Verifier, problem: Problem, probe: str, sample: Sample) -> Verdict:
    """The inner verdict with the probe as gold: only whether there is an answer, and which, is of use."""
    verdict = inner.verify(replace(problem, answer=probe), sample.text, sample.finish)
    is_answer = verdict.outcome in (Outcome.CORRECT, Outcome.WRONG)
    return verdict if is_answer else replace(verdict, extracted=None)


def _bad(where: str, given: object, expected: str) -> RecipeError:
    return RecipeError(where=where, given=repr(given), expected=expected, fix="Correct the setting.")


_NUMERIC = {"inner": {"name": "numeric"}}

register(
    "consensus",
    Consensus,
    examples=(
        Example(
            gold=None,
            text="It is 0.5",
            others=("1/2", "2"),
            settings=_NUMERIC,
            outcome=Outcome.CORRECT,
            extracted="0.5",
        ),
        Example(gold="2", text="2", others=("3", "3"), settings=_NUMERIC, outcome=Outcome.WRONG, extracted="2"),
        Example(gold="2", text="2", settings=_NUMERIC, outcome=Outcome.FAILED, extracted="2"),
        Example(gold=None, text="none", others=("2", "2"), settings=_NUMERIC, outcome=Outcome.UNPARSED),
    ),
)
register(
    "self_confidence",
    SelfConfidence,
    examples=(
        Example(gold=None, text="none", settings=_NUMERIC, outcome=Outcome.UNPARSED),
        Example(gold=None, text="2", settings=_NUMERIC, outcome=Outcome.FAILED, extracted="2"),
    ),
)
