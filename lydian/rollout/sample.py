"""Problem → trajectory → verdict → group: sampling and judging a round."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from lydian.data.problems import Problem
from lydian.data.trajectory import Completion, Sampling, Trajectory, Turn
from lydian.data.verdict import Group, Scored
from lydian.rollout.engine import Engine, Progress, Request
from lydian.text.template import Template
from lydian.verifiers.consensus import TokenScorer, score_groups
from lydian.verifiers.verifier import Verifier, verify_all

if TYPE_CHECKING:
    from lydian.data.verdict import Verdict


def sample(
    engine: Engine,
    template: Template,
    problems: Seq[Problem],
    sampling: Sampling,
    *,
    num_samples: int,
    progress: Progress | None = None,
) -> list[list[Trajectory]]:
    """`num_samples` trajectories of one turn for each problem, in order."""
    requests = [
        Request(
            problem_id=problem.id,
            prompt=template.encode_prompt(problem.messages),
            num_samples=num_samples,
            sampling=sampling,
        )
        for problem in problems
    ]
    completions = engine.generate(requests, progress)
    return [
        [_trajectory(request, k, completion) for k, completion in enumerate(samples)]
        for request, samples in zip(requests, completions, strict=True)
    ]


def score(
    problems: Seq[Problem], trajectories: Seq[Seq[Trajectory]], template: Template, verifier: Verifier
) -> list[Group]:
    """Judges trajectories by the text of their last completion (or its tokens, if asked); one group a problem."""
    if isinstance(verifier, TokenScorer):
        return score_groups(problems, trajectories, template.decode, verifier)
    flat = [
        (problem, template.decode(t.turns[-1].completion.tokens), t.finish)
        for problem, samples in zip(problems, trajectories, strict=True)
        for t in samples
    ]
    verdicts = iter(verify_all(verifier, flat))
    return [
        Group(problem=problem, members=tuple(_scored(t, next(verdicts)) for t in samples))
        for problem, samples in zip(problems, trajectories, strict=True)
    ]


def _trajectory(request: Request, index: int, completion: Completion) -> Trajectory:
    turn = Turn(context=request.prompt, completion=completion)
    return Trajectory(problem_id=request.problem_id, sample=request.first_sample + index, turns=(turn,))


def _scored(trajectory: Trajectory, verdict: Verdict) -> Scored:
    return Scored(trajectory=trajectory, verdict=verdict)
