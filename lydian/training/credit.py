"""From judged groups to sequences to train on: who is trained, with which advantage.

Two kinds of credit. `Imitation` keeps correct completions and trains them like given text. `PolicyGradient` first gives
each completion its reward; when everything it needs is known (the reference's logprobs, for a KL in the reward), it
turns rewards into advantages.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lydian.data.forest import Item, sequences_of
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling, Trajectory
from lydian.data.verdict import Group, Scored
from lydian.errors import RecipeError
from lydian.objectives.advantage import soft_overlong
from lydian.training.learner import required_names
from lydian.training.terms import KLInReward
from lydian.verifiers.verifier import is_label_free

Advantage = Callable[..., Tensor]


class Credit(Protocol):
    """How a round's groups become sequences or pairs to train on.

    needs  names of facts beyond reward and group that must be measured: greedy_reward, rewards
    """

    @property
    def needs(self) -> tuple[str, ...]:
        """See above."""
        ...

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """What a round trains on, with the facts that `assign` reads; greedy rewards by problem id, if needed."""
        ...

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The items with their advantages, those that are not trained left out."""
        ...

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """What it makes of a round's groups, beyond what is measured on any groups."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """Expert iteration: the correct completions, duplicates removed, at most `keep_per_problem` of each problem.

    0 keeps all. Without the cap easy problems would dominate. Among equals the first sampled are kept.
    Source: Anthony et al. (2017), arXiv:1705.08439; for language models e.g. Singh et al. (2023), arXiv:2312.06585.
    """

    keep_per_problem: int
    needs: tuple[str, ...] = ()

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """The kept completions, as text to imitate."""
        return [
            sequence_of(member.trajectory, is_imitated=True)
            for group in groups
            for member in _distinct_correct(group)[: self.keep_per_problem or None]
        ]

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Nothing to assign: every kept token counts the same."""
        return list(items)

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """None of its own."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """Rewards of completions, turned into one advantage for all tokens of a completion.

    advantage        a function of `lydian.objectives.advantage`; its positional parameters name what it needs
    kl               penalty in the reward, or None
    max_tokens       limit on new tokens, for the penalty on overlong completions
    overlong_buffer  tokens below the limit over which the penalty grows from 0 to 1; 0 for none
    train_truncated  train completions that hit the limit too; their rewards count in baselines either way

    Members whose verifier failed have no score: they are left out, also of their group's baseline. So is one whose
    fellows all failed: it has nobody to be compared with.
    """

    advantage: Advantage
    kl: KLInReward | None = None
    max_tokens: int = 0
    overlong_buffer: int = 0
    train_truncated: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        """What the advantage asks for beyond reward and group."""
        return tuple(name for name in required_names(self.advantage) if name not in ("reward", "group"))

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """One sequence for each member that has a score, with the facts reward and is_truncated.

        Raises RecipeError if samples were drawn from a truncated distribution (greedy, top-p, top-k, min-p): the ratio
        between the learner's policy and the sampler's would then be wrong for every token.
        """
        if "greedy_reward" in self.needs:  # where the verifier failed on the greedy completion there is no baseline
            groups = [group for group in groups if group.problem.id in greedy_rewards]
        members = [(group, member) for group in groups for member in _comparable(group)]
        for _, member in members:
            require_full_support(member.trajectory.turns[-1].completion.sampling)
        return [
            replace(sequence_of(member.trajectory, is_imitated=False), facts=self._facts(group, member, greedy_rewards))
            for group, member in members
        ]

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The sequences with the stream `advantage`. Raises RecipeError if it needs more samples a problem."""
        sequences = sequences_of(items)
        if not sequences:
            return []
        numbers = {name: number for number, name in enumerate(dict.fromkeys(s.group for s in sequences))}
        known = {
            "reward": torch.tensor([self._reward(s) for s in sequences], dtype=torch.float64),
            "group": torch.tensor([numbers[s.group] for s in sequences]),
            "rewards": torch.tensor([_parts(s) for s in sequences], dtype=torch.float64),
        }
        if "greedy_reward" in self.needs:
            known["greedy_reward"] = torch.tensor([s.facts["greedy_reward"] for s in sequences], dtype=torch.float64)
        try:
            advantages = self.advantage(*(known[name] for name in required_names(self.advantage))).tolist()
        except ValueError as error:
            raise RecipeError(
                where="num_samples, or the advantage's settings",
                given=str(error),
                expected="samples to compare, and settings that fit them",
                fix="Raise num_samples, or correct the setting that is named.",
            ) from error
        return [
            _with_advantage(sequence, advantage)
            for sequence, advantage in zip(sequences, advantages, strict=True)
            if self.train_truncated or not sequence.facts["is_truncated"]
        ]

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """None of its own."""
        return {}

    def _facts(self, group: Group, member: Scored, greedy_rewards: Mapping[str, float]) -> dict[str, float]:
        completion = member.trajectory.turns[-1].completion
        verdict = member.verdict
        assert verdict.score is not None
        facts = {"reward": verdict.score, "is_truncated": float(completion.finish is Finish.LENGTH)}
        if "greedy_reward" in self.needs:
            facts["greedy_reward"] = greedy_rewards[group.problem.id]
        if "rewards" in self.needs:
            parts = verdict.parts or {"score": verdict.score}
            facts |= {f"part {name}": float(value) for name, value in parts.items()}
        return facts

    def _reward(self, sequence: Sequence) -> float:
        reward = sequence.facts["reward"]
        if self.kl is not None:
            proximal, reference = (sequence.streams[name] for name in ("proximal_logprobs", "reference_logprobs"))
            used = itertools.compress(zip(proximal, reference, strict=True), sequence.trained)
            reward -= self.kl.coef * sum(p - r for p, r in used)
        if self.overlong_buffer:
            length = torch.tensor([float(sequence.num_trained)])
            reward += soft_overlong(length, limit=self.max_tokens, buffer=self.overlong_buffer).item()
        return reward


def sequence_of(trajectory: Trajectory, *, is_imitated: bool) -> Sequence:
    """A trajectory as a sequence: sampled tokens are trained, context never is.

    is_imitated  trained like given text, at temperature 1 and without behaviour logprobs; otherwise at the temperature
                 it was sampled at
    """
    tokens: list[int] = []
    trained: list[bool] = []
    behaviour: list[float] = []
    for turn in trajectory.turns:
        completion = turn.completion
        tokens += (*turn.context, *completion.tokens)
        trained += [False] * len(turn.context) + [True] * len(completion.tokens)
        behaviour += (*[0.0] * len(turn.context), *completion.logprobs)
    versions = tuple(itertools.chain.from_iterable(turn.completion.versions for turn in trajectory.turns))
    return Sequence(
        id=f"{trajectory.problem_id}/{trajectory.sample}",
        group=trajectory.problem_id,
        tokens=tuple(tokens),
        trained=tuple(trained),
        streams={} if is_imitated else {"behaviour_logprobs": tuple(behaviour)},
        temperature=1.0 if is_imitated else trajectory.turns[-1].completion.sampling.temperature,
        versions=versions,
    )


def require_full_support(sampling: Sampling) -> None:
    """Raises RecipeError for samples from a truncated distribution: their logprobs are another policy's."""
    if sampling.truncates_support:
        raise RecipeError(
            where="sampling",
            given=f"temperature {sampling.temperature}, top_p {sampling.top_p}, top_k {sampling.top_k}, "
            f"min_p {sampling.min_p}",
            expected="samples from the full distribution (temperature > 0, nothing truncated) for policy gradients",
            fix="Set top_p = 1, top_k = 0 and min_p = 0 for this stage; evaluation may still truncate.",
        )


def _with_advantage(sequence: Sequence, advantage: float) -> Sequence:
    stream = tuple(advantage if used else 0.0 for used in sequence.trained)
    return replace(sequence, streams={**sequence.streams, "advantage": stream})


def _parts(sequence: Sequence) -> list[float]:
    return [value for name, value in sorted(sequence.facts.items()) if name.startswith("part ")]


def _comparable(group: Group) -> list[Scored]:
    scored = [member for member in group.members if member.verdict.score is not None]
    return [] if len(scored) == 1 < len(group.members) else scored


def _distinct_correct(group: Group) -> list[Scored]:
    distinct = {m.trajectory.tokens: m for m in reversed(group.members) if m.verdict.is_correct}
    return sorted(distinct.values(), key=lambda m: m.trajectory.sample)


def group_metrics(groups: Seq[Group]) -> dict[str, float]:
    """What a round's samples look like: reward, accuracy, length, truncation, and groups without a signal.

    Samples that the verifier failed on are neither right nor wrong: reward and accuracy leave them out. Where verdicts
    rest on no gold answer, their share of CORRECT is `agreement`: it is no accuracy.
    """
    members = [m for group in groups for m in group.members]
    scores = [m.verdict.score for m in members if m.verdict.score is not None]
    outcomes = Counter(m.verdict.outcome.value for m in members)
    flat = sum(len({m.verdict.score for m in group.members} - {None}) < 2 for group in groups)
    is_agreement = any(is_label_free(m.verdict.verifier) for m in members)
    metrics = {
        "reward": sum(scores) / max(len(scores), 1),
        "agreement" if is_agreement else "accuracy": outcomes["correct"] / max(len(scores), 1),
        "mean_tokens": sum(m.trajectory.num_sampled_tokens for m in members) / len(members),
        "truncated": sum(m.trajectory.finish.value == "length" for m in members) / len(members),
        "no_signal_groups": flat / len(groups),
    }
    if outcomes["failed"]:
        metrics["failed"] = outcomes["failed"] / len(members)
    return metrics
