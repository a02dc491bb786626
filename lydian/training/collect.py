"""What a round trains on: a fixed corpus, or completions sampled with the current weights and judged."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from lydian.data.forest import Item, sequences_of
from lydian.data.problems import Problem
from lydian.data.trajectory import Sampling
from lydian.data.verdict import Group, Outcome, Scored, Verdict
from lydian.errors import RecipeError
from lydian.models.weights import Weights
from lydian.rollout.engine import Engine, Progress
from lydian.rollout.sample import sample, score
from lydian.text.template import Template
from lydian.training.credit import Credit, group_metrics
from lydian.training.monitors import monitor_metrics
from lydian.verifiers.verifier import Verifier

_NOT_JUDGED = Verdict(score=None, outcome=Outcome.FAILED, extracted=None, reason="not judged", verifier="none")
_WITHOUT_VERDICT = ("mean_tokens", "truncated", "repetition", "heldout_accuracy")
"""Metrics of a round that need no verdict of its verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The items of a round, facts about them, and the groups they came from (none for a fixed corpus)."""

    items: list[Item]
    metrics: dict[str, float] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)


class Source(Protocol):
    """Gives each round its items; a pure function of the round and the weights loaded last."""

    def load(self, weights: Weights) -> None:
        """From now on collect with these weights."""
        ...

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """The items of one round, their advantages still to be assigned."""
        ...

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The items with their advantages, once all that these depend on is among their streams and facts."""
        ...


@dataclass(frozen=True, slots=True)
class Corpus:
    """The same items in every round: supervised fine-tuning, pretraining, offline preferences."""

    items: list[Item]

    def load(self, weights: Weights) -> None:
        """A fixed corpus does not depend on weights."""

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """All items."""
        return Collected(items=self.items)

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Given text has no advantages."""
        return list(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Samples problems with the engine, judges, and turns groups into sequences.

    problems_per_round  problems of one round, drawn without replacement until all have had their turn; 0 takes all
    num_samples         completions a problem
    credit              how groups become sequences with advantages
    most_draws          dynamic sampling: with more than one, groups whose members are all right or all wrong (by the
                        verdict, not by the shaped reward) are dropped and further problems drawn in their place, at
                        most this many times the problems of a round. With 1 every group is kept
    verifier            None where nothing depends on verdicts: completions are then not judged
    heldout             a verifier that gives no reward and judges the same completions, or None
    seed                of the run and stage; with the round it fixes problems and random numbers
    """

    engine: Engine
    template: Template
    verifier: Verifier | None
    problems: Seq[Problem]
    sampling: Sampling
    num_samples: int
    problems_per_round: int
    credit: Credit
    seed: int
    most_draws: int = 1
    heldout: Verifier | None = None

    def __post_init__(self) -> None:
        if self.verifier is None and self.most_draws > 1:
            raise RecipeError(
                where="most_draws",
                given=f"{self.most_draws}, and no verifier",
                expected="verdicts, by which groups are dropped",
                fix="Set most_draws = 1, or give the stage a verifier.",
            )

    def load(self, weights: Weights) -> None:
        """Passes new weights to the engine."""
        self.engine.load(weights)

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """Samples and judges one round."""
        sampled: list[Group] = []
        kept: list[Group] = []
        wanted = self.problems_per_round or len(self.problems)
        for draw in range(self.most_draws):
            seen = {group.problem.id for group in sampled}
            problems = [problem for problem in self.problems_of(round, draw) if problem.id not in seen]
            groups = self._groups(problems, replace(self.sampling, seed=self._seed(round, draw)), progress)
            sampled += groups
            kept += groups if self.most_draws == 1 else [g for g in groups if 0 < g.num_correct < len(g.members)]
            if len(kept) >= wanted:
                break
        kept = kept[:wanted]
        items = self.credit.items(kept, self._greedy_rewards(kept, round))
        metrics = group_metrics(sampled) | monitor_metrics(sampled, self.template, self.heldout)
        if self.verifier is None:
            metrics = {name: value for name, value in metrics.items() if name in _WITHOUT_VERDICT}
        metrics |= self.credit.metrics(kept)
        metrics["kept"] = len(sequences_of(items)) / sum(len(group.members) for group in sampled)
        if self.most_draws > 1:
            metrics |= {"drawn_groups": float(len(sampled)), "kept_groups": float(len(kept))}
        if metrics["kept"] < 1:
            metrics |= retention(sampled, items)
        return Collected(items=items, metrics=metrics, groups=sampled)

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The sequences with their advantages."""
        return self.credit.assign(items)

    def problems_of(self, round: int, draw: int = 0) -> list[Problem]:
        """The problems of a round's draw: a walk through one seeded permutation after another."""
        size = self.problems_per_round or len(self.problems)
        start = (round * self.most_draws + draw) * size
        chosen = [self.problems[index] for index in walk(len(self.problems), start, size, self.seed)]
        return list({problem.id: problem for problem in chosen}.values())  # an epoch's edge may repeat a problem

    def _groups(
        self, problems: Seq[Problem], sampling: Sampling, progress: Progress | None, num_samples: int | None = None
    ) -> list[Group]:
        num = num_samples or self.num_samples
        trajectories = sample(self.engine, self.template, problems, sampling, num_samples=num, progress=progress)
        if self.verifier is None:
            members = [tuple(Scored(trajectory=t, verdict=_NOT_JUDGED) for t in samples) for samples in trajectories]
            return [Group(problem=p, members=scored) for p, scored in zip(problems, members, strict=True)]
        return score(problems, trajectories, self.template, self.verifier)

    def _greedy_rewards(self, groups: Seq[Group], round: int) -> dict[str, float]:
        """ReMax's baseline: the greedy completion's reward by problem id; none where its verifier failed."""
        if "greedy_reward" not in self.credit.needs:
            return {}
        sampling = replace(self.sampling, temperature=0.0, seed=self._seed(round, 0))
        greedy = self._groups([group.problem for group in groups], sampling, None, num_samples=1)
        scores = {group.problem.id: group.members[0].verdict.score for group in greedy}
        return {problem: score for problem, score in scores.items() if score is not None}

    def _seed(self, round: int, draw: int) -> int:
        return derived_seed(self.seed, round, draw) if draw else derived_seed(self.seed, round)


def retention(groups: Seq[Group], items: Seq[Item]) -> dict[str, float]:
    """Sequences kept a problem, by the problems' `level` where they have one: shows whether hard problems stay in."""
    kept = Counter(sequence.group for sequence in sequences_of(items))
    by_level: dict[str, list[int]] = {}
    for group in groups:
        level = group.problem.metadata.get("level")
        if level is not None:
            by_level.setdefault(str(level), []).append(kept[group.problem.id])
    return {f"retention_level_{level}": sum(counts) / len(counts) for level, counts in sorted(by_level.items())}


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that is a pure function of the parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def walk(num: int, start: int, size: int, seed: int) -> list[int]:
    """Steps start … start + size − 1 of a walk through one seeded permutation of range(num) after another."""
    chosen: list[int] = []
    for epoch, places in itertools.groupby(range(start, start + size), lambda place: place // num):
        order = permutation(num, seed, epoch)
        chosen += [int(order[place % num]) for place in places]
    return chosen


def permutation(num: int, *parts: object) -> np.ndarray:
    """A permutation of range(num) that is a pure function of the parts."""
    return np.random.Generator(np.random.Philox(derived_seed("permutation", num, *parts))).permutation(num)
