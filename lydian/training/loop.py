"""The one loop: collect a round, fix the proximal policy, walk through it in optimiser steps, publish, load.

    round r:  collect ─▶ items ─▶ [proximal, reference logprobs] ─▶ assign advantages
              ─▶ epochs × batches: accumulate, step ─▶ publish ─▶ load

Supervised fine-tuning is one round over a fixed corpus; expert iteration a few rounds of many steps; on-policy policy
gradient many rounds of one step. Everything random is a pure function of (seed, round, epoch), so `Position` and the
learner's state are all that a resumed run needs; a round that was under way keeps its items.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lydian.data.forest import Item, sequences_of
from lydian.models.allocator import return_freed_memory
from lydian.models.policy import Policy
from lydian.models.weights import Weights
from lydian.rollout.engine import Progress
from lydian.training.collect import Collected, Source, permutation
from lydian.training.settings import StageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far the policy has moved in the epoch under way: the mean KL from the round's first policy to the current.

    kl          Σ k3 over tokens, in nats
    num_tokens  trained tokens of the steps that it was measured in
    """

    kl: float = 0.0
    num_tokens: int = 0

    def after(self, batch: Seq[Item], statistics: Mapping[str, float]) -> Drift:
        """With a step more; one that had nothing to compute measured nothing."""
        if "kl_k3" not in statistics:
            return self
        num = sum(sequence.num_trained for sequence in sequences_of(batch))
        return Drift(kl=self.kl + num * statistics["kl_k3"], num_tokens=self.num_tokens + num)

    @property
    def mean(self) -> float:
        """In nats a token."""
        return self.kl / max(self.num_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a stage stands: rounds finished, steps done in the round under way, steps done in all.

    items    of the round under way, None between rounds and for corpora (they are collected again, equal)
    metrics  of collecting those items
    drift    of the epoch under way
    """

    round: int = 0
    step_in_round: int = 0
    step: int = 0
    items: list[Item] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    drift: Drift = Drift()


class AnyLearner(Protocol):
    """What the loop and a run need of a learner: `Learner`, or one composed of several."""

    @property
    def policy(self) -> Policy:
        """The policy that is trained and sampled from."""
        ...

    @property
    def version(self) -> int:
        """The weight version last minted."""
        ...

    def with_fixed_policies(self, items: Seq[Item], *, num_steps: int) -> list[Item]:
        """A new round's items with all that stays fixed while it is trained on; called once a round."""
        ...

    def restart(self) -> None:
        """Goes back to the weights and the optimiser's state that it began with."""
        ...

    def reset_reference(self) -> None:
        """Makes the current weights the reference policy."""
        ...

    def accumulate(self, items: Seq[Item]) -> dict[str, float]:
        """Adds the gradient of one whole optimiser step's items; returns statistics, means over sites."""
        ...

    def step(self, progress: float) -> dict[str, float]:
        """Applies the accumulated gradient and clears it. `progress` in [0, 1] places the step in the schedule."""
        ...

    def publish(self) -> Weights:
        """Mints the next version of the policy's weights; called once a round, at its end."""
        ...

    def weights(self) -> Weights:
        """The policy's current weights under the version last minted."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on bitwise."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` gave."""
        ...


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
    learner: AnyLearner,
    source: Source,
    settings: StageSettings,
    journal: Journal | None = None,
    *,
    seed: int = 0,
    start: Position | None = None,
    most_held: float = math.inf,
    most_in_training: float = math.inf,
) -> Position:
    """Runs a stage from `start` to its end, which it returns. A round ends early after an epoch that moved the policy
    farther than `target_kl`.

    most_held         bytes of this process above which freed memory goes back to the system, before and after sampling
                      and at the end
    most_in_training  the same after a step: texts of other lengths leave gaps of their own in the heap

    The learner's weights at the end are the stage's result; `source` has the last published version loaded. Raises
    what its parts raise; whatever was checkpointed stays good.
    """
    start = start or Position()
    journal = journal or Quiet()
    step = start.step
    give_back = functools.partial(return_freed_memory, most_held)
    for round in range(start.round, settings.rounds):
        give_back()
        items, metrics, is_sampled = _round_items(learner, source, settings, journal, round, start)
        give_back()
        batches = list(_batches(items, settings, seed, round))
        first, drift = (start.step_in_round, start.drift) if round == start.round else (0, Drift())
        kept = items if is_sampled and len(batches) > 1 else None
        for index in range(first, len(batches)):
            began = time.monotonic()
            statistics = learner.accumulate(batches[index])
            share = (index + 0.5) / len(batches)
            statistics |= learner.step(share if settings.restart else (round + share) / settings.rounds)
            step += 1
            return_freed_memory(most_in_training)
            drift = drift.after(batches[index], statistics)
            has_drifted = False
            if (index + 1) % (len(batches) // settings.epochs) == 0:
                if settings.target_kl is not None:
                    statistics["epoch_kl"] = drift.mean
                    has_drifted = drift.mean > settings.target_kl
                drift = Drift()
            position = Position(
                round=round, step_in_round=index + 1, step=step, items=kept, metrics=metrics, drift=drift
            )
            total = step + math.ceil(len(batches) * (settings.rounds - round) - index - 1)
            journal.stepped(position, total, time.monotonic() - began, metrics | statistics)
            if has_drifted and index + 1 < len(batches):
                journal.event("early_stop", _early_stop(round, index, len(batches), settings, statistics["epoch_kl"]))
                break
            if index + 1 < len(batches) and step % settings.checkpoint_steps == 0:
                journal.checkpoint(position)
        source.load(learner.publish())
        if (round + 1) % max(1, settings.checkpoint_steps // max(1, len(batches))) == 0 and round + 1 < settings.rounds:
            journal.checkpoint(Position(round=round + 1, step=step))
    give_back()
    return Position(round=settings.rounds, step=step)


def _round_items(
    learner: AnyLearner, source: Source, settings: StageSettings, journal: Journal, round: int, start: Position
) -> tuple[list[Item], dict[str, float], bool]:
    """The items of a round, its metrics, and whether they were sampled; what was kept when a round goes on."""
    if round == start.round and start.items is not None:
        return start.items, dict(start.metrics), True
    collected = source.collect(round, journal.sampling(round))
    if round != start.round or start.step_in_round == 0:
        _begin_round(learner, settings)
    items = learner.with_fixed_policies(collected.items, num_steps=_num_batches(len(collected.items), settings))
    items = source.assign(items)
    if collected.groups:
        journal.collected(round, replace(collected, items=items))
    if not items:
        journal.event("empty_round", f"Round {round}: nothing to train on (no completion was kept).")
    return items, collected.metrics, bool(collected.groups)


def _begin_round(learner: AnyLearner, settings: StageSettings) -> None:
    """What a round changes before its first step; the samples were drawn before."""
    if settings.restart:
        learner.restart()
    if settings.reference == "round":
        learner.reset_reference()


def _early_stop(round: int, index: int, num_steps: int, settings: StageSettings, kl: float) -> str:
    return (
        f"Round {round}: stopped after epoch {(index + 1) * settings.epochs // num_steps} of {settings.epochs}; "
        f"the policy is {kl:.3g} nats a token from the round's first, above target_kl = {settings.target_kl:g}."
    )


def _num_batches(num_items: int, settings: StageSettings) -> int:
    return settings.epochs * len(_starts(num_items, settings))


def _starts(num_items: int, settings: StageSettings) -> range:
    """Where the batches of an epoch begin. One item left over joins the last: some losses compare items of a step."""
    size = settings.batch_size or max(num_items, 1)
    return range(0, num_items - 1 if num_items > 1 and size > 1 else num_items, size)


def _batches(items: Seq[Item], settings: StageSettings, seed: int, round: int) -> Iterator[list[Item]]:
    """Batches of an epoch after another, each epoch in its own seeded order; items of one step stay in that order."""
    starts = _starts(len(items), settings)
    for epoch in range(settings.epochs):
        is_whole = len(starts) < 2 and settings.epochs == 1
        order = range(len(items)) if is_whole else permutation(len(items), seed, round, epoch)
        for start, end in itertools.zip_longest(starts, starts[1:], fillvalue=len(items)):
            yield [items[int(i)] for i in order[start:end]]
