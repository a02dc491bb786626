"""What a round trains on: a fixed corpus, or completions sampled with the current weights and judged."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from lydian.data.forest import Item
from lydian.data.problems import Problem
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.data.verdict import Group
from lydian.models.weights import Weights
from lydian.rollout.engine import Engine, Progress
from lydian.rollout.sample import sample, score
from lydian.text.template import Template
from lydian.training.credit import group_metrics
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
        """The items of one round."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Samples problems with the engine, judges, and turns groups into sequences.

    problems_per_round  problems of one round, drawn without replacement until all have had their turn; 0 takes all
    num_samples         completions a problem
    to_sequences        credit assignment: groups → sequences
    seed                of the run and stage; with the round it fixes problems and random numbers
    """

    engine: Engine
    template: Template
    verifier: Verifier
    problems: Seq[Problem]
    sampling: Sampling
    num_samples: int
    problems_per_round: int
    to_sequences: Callable[[Seq[Group]], list[Sequence]]
    seed: int

    def load(self, weights: Weights) -> None:
        """Passes new weights to the engine."""
        self.engine.load(weights)

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """Samples, judges and credits one round."""
        problems = self.problems_of(round)
        sampling = replace(self.sampling, seed=derived_seed(self.seed, round))
        trajectories = sample(
            self.engine, self.template, problems, sampling, num_samples=self.num_samples, progress=progress
        )
        groups = score(problems, trajectories, self.template, self.verifier)
        items = self.to_sequences(groups)
        metrics = group_metrics(groups) | {"kept": len(items) / (len(problems) * self.num_samples)}
        if metrics["kept"] < 1:
            metrics |= retention(groups, items)
        return Collected(items=list(items), metrics=metrics, groups=groups)

    def problems_of(self, round: int) -> list[Problem]:
        """The problems of a round: a walk through one seeded permutation after another."""
        size = self.problems_per_round or len(self.problems)
        num = len(self.problems)
        chosen: list[Problem] = []
        for epoch, places in itertools.groupby(range(round * size, (round + 1) * size), lambda place: place // num):
            order = permutation(num, self.seed, epoch)
            chosen += [self.problems[int(order[place % num])] for place in places]
        return list({problem.id: problem for problem in chosen}.values())  # an epoch's edge may repeat a problem


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
