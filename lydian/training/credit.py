"""From judged groups to sequences to train on: who is trained, with which advantage."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Trajectory
from lydian.data.verdict import Group, Scored
from lydian.errors import RecipeError

Advantage = Callable[[Tensor, Tensor], Tensor]


def sequence_of(trajectory: Trajectory, *, is_imitated: bool, advantage: float | None = None) -> Sequence:
    """A trajectory as a sequence: sampled tokens are trained, context never is.

    is_imitated  trained like given text, at temperature 1 and without behaviour logprobs; otherwise at the temperature
                 it was sampled at
    advantage    the same for every sampled token
    """
    tokens: list[int] = []
    trained: list[bool] = []
    behaviour: list[float] = []
    for turn in trajectory.turns:
        completion = turn.completion
        tokens += (*turn.context, *completion.tokens)
        trained += [False] * len(turn.context) + [True] * len(completion.tokens)
        behaviour += (*[0.0] * len(turn.context), *completion.logprobs)
    streams = {} if is_imitated else {"behaviour_logprobs": tuple(behaviour)}
    if advantage is not None:
        streams["advantage"] = tuple(advantage if used else 0.0 for used in trained)
    versions = tuple(itertools.chain.from_iterable(turn.completion.versions for turn in trajectory.turns))
    return Sequence(
        id=f"{trajectory.problem_id}/{trajectory.sample}",
        group=trajectory.problem_id,
        tokens=tuple(tokens),
        trained=tuple(trained),
        streams=streams,
        temperature=1.0 if is_imitated else trajectory.turns[-1].completion.sampling.temperature,
        versions=versions,
    )


def assign_advantages(groups: Seq[Group], advantage: Advantage) -> list[Sequence]:
    """One sequence for each member that has a score, with its advantage within its group.

    Members whose verifier failed have no score: they are left out, also of their group's baseline. So is one whose
    fellows all failed: it has nobody to be compared with.

    Raises RecipeError if samples were drawn from a truncated distribution (greedy, top-p, top-k, min-p): the ratio
    between the learner's policy and the sampler's would then be wrong for every token. Also if the advantage needs
    more samples a problem than there are.
    """
    members = [(g, member) for g, group in enumerate(groups) for member in _comparable(group)]
    if not members:
        return []
    sampling = members[0][1].trajectory.turns[-1].completion.sampling
    if sampling.truncates_support:
        raise RecipeError(
            where="sampling",
            given=f"temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}, "
            f"min_p {sampling.min_p}",
            expected="sampling from the full distribution (temperature > 0, nothing truncated) for policy gradients",
            fix="Set top_p = 1, top_k = 0 and min_p = 0 for this stage; evaluation may still truncate.",
        )
    rewards = torch.tensor([m.verdict.score for _, m in members], dtype=torch.float64)
    try:
        advantages = advantage(rewards, torch.tensor([g for g, _ in members])).tolist()
    except ValueError as error:
        raise RecipeError(
            where="num_samples", given=str(error), expected="samples to compare", fix="Raise num_samples."
        ) from error
    return [
        sequence_of(m.trajectory, is_imitated=False, advantage=a) for (_, m), a in zip(members, advantages, strict=True)
    ]


def _comparable(group: Group) -> list[Scored]:
    scored = [member for member in group.members if member.verdict.score is not None]
    return [] if len(scored) == 1 < len(group.members) else scored


def select_correct(groups: Seq[Group], *, keep_per_problem: int) -> list[Sequence]:
    """Expert iteration: the correct completions, duplicates removed, at most `keep_per_problem` of each problem.

    Without the cap easy problems would dominate. Among equals the first sampled are kept.
    Source: Anthony et al. (2017), arXiv:1705.08439; for language models e.g. Singh et al. (2023), arXiv:2312.06585.
    """
    return [
        sequence_of(member.trajectory, is_imitated=True)
        for group in groups
        for member in _distinct_correct(group)[:keep_per_problem]
    ]


def _distinct_correct(group: Group) -> list[Scored]:
    distinct = {m.trajectory.tokens: m for m in reversed(group.members) if m.verdict.is_correct}
    return sorted(distinct.values(), key=lambda m: m.trajectory.sample)


def group_metrics(groups: Seq[Group]) -> dict[str, float]:
    """What a round's samples look like: reward, accuracy, length, truncation, and groups without a signal.

    Samples that the verifier failed on are neither right nor wrong: reward and accuracy leave them out.
    """
    members = [m for group in groups for m in group.members]
    scores = [m.verdict.score for m in members if m.verdict.score is not None]
    outcomes = Counter(m.verdict.outcome.value for m in members)
    flat = sum(len({m.verdict.score for m in group.members} - {None}) < 2 for group in groups)
    metrics = {
        "reward": sum(scores) / max(len(scores), 1),
        "accuracy": outcomes["correct"] / max(len(scores), 1),
        "mean_tokens": sum(m.trajectory.num_sampled_tokens for m in members) / len(members),
        "truncated": sum(m.trajectory.finish.value == "length" for m in members) / len(members),
        "no_signal_groups": flat / len(groups),
    }
    if outcomes["failed"]:
        metrics["failed"] = outcomes["failed"] / len(members)
    return metrics
