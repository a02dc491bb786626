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
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.data.verdict import Group
from lydian.models.weights import Weights
from lydian.rollout.engine import Engine, Progress
from lydian.rollout.sample import sample, score
from lydian.text.template import Template
from lydian.training.credit import Credit, group_metrics
from lydian.training.monitors import monitor_metrics
from lydian.verifiers.verifier import Verifier


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
    heldout             a verifier that gives no reward and judges the same completions, or None
    seed                of the run and stage; with the round it fixes problems and random numbers
    """

    engine: Engine
    template: Template
    verifier: Verifier
    problems: Seq[Problem]
    sampling: Sampling
    num_samples: int
    problems_per_round: int
    credit: Credit
    seed: int
    most_draws: int = 1
    heldout: Verifier | None = None

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
        items = self.credit.sequences(kept, self._greedy_rewards(kept, round))
        metrics = group_metrics(sampled) | monitor_metrics(sampled, self.template, self.heldout)
        metrics["kept"] = len(items) / sum(len(group.members) for group in sampled)
        if self.most_draws > 1:
            metrics |= {"drawn_groups": float(len(sampled)), "kept_groups": float(len(kept))}
        if metrics["kept"] < 1:
            metrics |= retention(sampled, items)
        return Collected(items=list(items), metrics=metrics, groups=sampled)

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The sequences with their advantages."""
        return list(self.credit.assign(sequences_of(items)))

    def problems_of(self, round: int, draw: int = 0) -> list[Problem]:
        """The problems of a round's draw: a walk through one seeded permutation after another."""
        size = self.problems_per_round or len(self.problems)
        num = len(self.problems)
        start = (round * self.most_draws + draw) * size
        chosen: list[Problem] = []
        for epoch, places in itertools.groupby(range(start, start + size), lambda place: place // num):
            order = permutation(num, self.seed, epoch)
            chosen += [self.problems[int(order[place % num])] for place in places]
        return list({problem.id: problem for problem in chosen}.values())  # an epoch's edge may repeat a problem

    def _groups(
        self, problems: Seq[Problem], sampling: Sampling, progress: Progress | None, num_samples: int | None = None
    ) -> list[Group]:
        num = num_samples or self.num_samples
        trajectories = sample(self.engine, self.template, problems, sampling, num_samples=num, progress=progress)
        return score(problems, trajectories, self.template, self.verifier)

    def _greedy_rewards(self, groups: Seq[Group], round: int) -> dict[str, float]:
        """ReMax's baseline: the reward of the greedy completion of each problem, by problem id; 0 where it failed."""
        if "greedy_reward" not in self.credit.needs:
            return {}
        sampling = replace(self.sampling, temperature=0.0, seed=self._seed(round, 0))
        greedy = self._groups([group.problem for group in groups], sampling, None, num_samples=1)
        return {group.problem.id: group.members[0].verdict.score or 0.0 for group in greedy}

    def _seed(self, round: int, draw: int) -> int:
        return derived_seed(self.seed, round, draw) if draw else derived_seed(self.seed, round)


def retention(groups: Seq[Group], items: Seq[Sequence]) -> dict[str, float]:
    """Sequences kept a problem, by the problems' `level` where they have one: shows whether hard problems stay in."""
    kept = Counter(item.group for item in items)
    by_level: dict[str, list[int]] = {}
    for group in groups:
        level = group.problem.metadata.get("level")
        if level is not None:
            by_level.setdefault(str(level), []).append(kept[group.problem.id])
    return {f"retention_level_{level}": sum(counts) / len(counts) for level, counts in sorted(by_level.items())}


def derived_seed(*parts: object) -> int:
    """A 63-bit seed that is a pure function of the parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def permutation(num: int, *parts: object) -> np.ndarray:
    """A permutation of range(num) that is a pure function of the parts."""
    return np.random.Generator(np.random.Philox(derived_seed("permutation", num, *parts))).permutation(num)
