"""The one loop: collect a round, fix the proximal policy, walk through it in optimiser steps, publish, load.

    round r:  collect ─▶ items ─▶ [proximal, reference logprobs] ─▶ assign advantages
              ─▶ epochs × batches: accumulate, step ─▶ publish ─▶ load

Supervised fine-tuning is one round over a fixed corpus; expert iteration a few rounds of many steps; on-policy policy
gradient many rounds of one step. Everything random is a pure function of (seed, round, epoch), so `Position` and the
learner's state are all that a resumed run needs; a round that was under way keeps its items.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Protocol

from lydian.data.forest import Item
from lydian.rollout.engine import Progress
from lydian.training.collect import Collected, Source, permutation
from lydian.training.learner import Learner
from lydian.training.settings import StageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a stage stands: rounds finished, steps done in the round under way, steps done in all.

    items    of the round under way, None between rounds and for corpora (they are collected again, equal)
    metrics  of collecting those items
    """

    round: int = 0
    step_in_round: int = 0
    step: int = 0
    items: list[Item] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Journal(Protocol):
    """What the loop tells the outside."""

    def collected(self, round: int, collected: Collected) -> None:
        """A round's items and groups, before training on them."""
        ...

    def stepped(self, position: Position, num_steps: int, seconds: float, metrics: dict[str, float]) -> None:
        """An optimiser step is done; `num_steps` is how many the whole stage is expected to have."""
        ...

    def checkpoint(self, position: Position) -> None:
        """A good moment to save: the stage can go on bitwise from here."""
        ...

    def event(self, kind: str, message: str) -> None:
        """Something a person should know."""
        ...

    def sampling(self, round: int) -> Progress | None:
        """Who to tell about the progress of a round's sampling."""
        ...


class Quiet:
    """A journal that keeps the metrics of each step and says nothing."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def collected(self, round: int, collected: Collected) -> None:
        """Rounds are not kept."""

    def stepped(self, position: Position, num_steps: int, seconds: float, metrics: dict[str, float]) -> None:
        """Keeps the metrics."""
        self.metrics.append(metrics)

    def checkpoint(self, position: Position) -> None:
        """Nothing is saved."""

    def event(self, kind: str, message: str) -> None:
        """Events are not kept."""

    def sampling(self, round: int) -> None:
        """Sampling is not shown."""


def train(
    learner: Learner,
    source: Source,
    settings: StageSettings,
    journal: Journal | None = None,
    *,
    seed: int = 0,
    start: Position | None = None,
) -> Position:
    """Runs a stage from `start` to its end, which it returns.

    The learner's weights at the end are the stage's result; `source` has the last published version loaded. Raises
    what its parts raise; whatever was checkpointed stays good.
    """
    start = start or Position()
    journal = journal or Quiet()
    step = start.step
    for round in range(start.round, settings.rounds):
        items, metrics, is_sampled = _round_items(learner, source, settings, journal, round, start)
        batches = list(_batches(items, settings, seed, round))
        first = start.step_in_round if round == start.round else 0
        kept = items if is_sampled and len(batches) > 1 else None
        for index in range(first, len(batches)):
            began = time.monotonic()
            statistics = learner.accumulate(batches[index])
            statistics |= learner.step((round + (index + 0.5) / len(batches)) / settings.rounds)
            step += 1
            position = Position(round=round, step_in_round=index + 1, step=step, items=kept, metrics=metrics)
            total = step + math.ceil(len(batches) * (settings.rounds - round) - index - 1)
            journal.stepped(position, total, time.monotonic() - began, metrics | statistics)
            if index + 1 < len(batches) and step % settings.checkpoint_steps == 0:
                journal.checkpoint(position)
        source.load(learner.publish())
        if (round + 1) % max(1, settings.checkpoint_steps // max(1, len(batches))) == 0 and round + 1 < settings.rounds:
            journal.checkpoint(Position(round=round + 1, step=step))
    return Position(round=settings.rounds, step=step)


def _round_items(
    learner: Learner, source: Source, settings: StageSettings, journal: Journal, round: int, start: Position
) -> tuple[list[Item], dict[str, float], bool]:
    """The items of a round, its metrics, and whether they were sampled; what was kept when a round goes on."""
    if round == start.round and start.items is not None:
        return start.items, dict(start.metrics), True
    collected = source.collect(round, journal.sampling(round))
    items = learner.with_fixed_policies(collected.items, num_steps=_num_batches(len(collected.items), settings))
    items = source.assign(items)
    if collected.groups:
        journal.collected(round, replace(collected, items=items))
    if not items:
        journal.event("empty_round", f"Round {round}: nothing to train on (no completion was kept).")
    return items, collected.metrics, bool(collected.groups)


def _num_batches(num_items: int, settings: StageSettings) -> int:
    return settings.epochs * math.ceil(num_items / (settings.batch_size or max(num_items, 1)))


def _batches(items: Seq[Item], settings: StageSettings, seed: int, round: int) -> Iterator[list[Item]]:
    """Batches of an epoch after another, each epoch in its own seeded order; items of one step stay in that order."""
    size = settings.batch_size or max(len(items), 1)
    for epoch in range(settings.epochs):
        order = (
            permutation(len(items), seed, round, epoch)
            if size < len(items) or settings.epochs > 1
            else range(len(items))
        )
        for start in range(0, len(items), size):
            yield [items[int(i)] for i in order[start : start + size]]
