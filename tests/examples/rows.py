"""The library's rows on a small random Llama, to compare the flat scripts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from torch import Tensor
from transformers import PreTrainedModel

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Outcome, Verdict
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.rollout.engine import Engine
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Collected, Rollouts, Source
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers.verifier import judged
from tests.models.families import VOCABULARY, make

RATE = 1e-3
STOP = 2
Ids = tuple[int, ...]
Metrics = list[dict[str, float]]


class Recorder(Quiet):
    """Keeps the groups of each round as the scripts take them, besides the metrics of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[tuple[Ids, list[Ids], list[float]]]] = []

    def collected(self, round: int, collected: Collected) -> None:
        self.rounds.append(
            [
                (
                    group.members[0].trajectory.turns[0].context,
                    [m.trajectory.turns[0].completion.tokens for m in group.members],
                    [m.verdict.score for m in group.members],
                )
                for group in collected.groups
            ]
        )


class Numbers:
    """A template whose text is the token ids themselves."""

    name, fingerprint, stop_tokens = "numbers", "numbers", frozenset({STOP})

    def encode_prompt(self, messages: Sequence[Message]) -> Ids:
        return tuple(map(int, messages[-1].content.split()))

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


class IsEven:
    """A completion is correct if the sum of its ids is even: about half of what a random model samples."""

    name, fingerprint = "is_even", "is_even"

    def check(self, problem: Problem) -> None:
        """Any problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return judged(self, Outcome.WRONG if sum(map(int, text.split())) % 2 else Outcome.CORRECT)


def ids(rng: Any, num: int) -> Ids:
    """Token ids that are neither special nor the stop token."""
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(num))


def problem(name: str, prompt: Ids) -> Problem:
    return Problem(id=name, messages=(Message(role="user", content=" ".join(map(str, prompt))),))


def settings_of(name: str, **changes: Any) -> StageSettings:
    """The row's defaults with changes, and a rate at which three steps of float32 show a difference."""
    defaults = {key: value for key, value in ALGORITHMS[name].defaults.items() if key != "objective"}
    optimiser = OptimiserSettings(**defaults.pop("optimiser", {}) | {"learning_rate": RATE})
    return StageSettings(**defaults | {"optimiser": optimiser} | changes)


def rollouts(
    name: str, engine: Engine, problems: Sequence[Problem], settings: StageSettings, sampling: Sampling
) -> Rollouts:
    """The source of a row that samples, with the row's credit assignment."""
    return Rollouts(
        engine=engine,
        template=Numbers(),
        verifier=IsEven(),
        problems=problems,
        sampling=sampling,
        num_samples=settings.num_samples,
        problems_per_round=settings.problems_per_round,
        credit=make_credit(ALGORITHMS[name], settings, max_tokens=sampling.max_tokens),
        seed=0,
    )


def run_row(
    name: str, source: Source, settings: StageSettings, teacher: Teacher | None = None
) -> tuple[Recorder, PreTrainedModel]:
    """Trains the small Llama with the library."""
    model, journal = make("llama"), Recorder()
    learner = make_learner(Policy(model), ALGORITHMS[name], settings, teacher=teacher)
    source.load(learner.weights())
    train(learner, source, settings, journal, seed=0)
    return journal, model


def assert_equal(mine: Metrics, theirs: Metrics, my_model: PreTrainedModel, their_model: PreTrainedModel) -> None:
    """Equal losses and gradient norms at every step and equal weights at the end, which training has moved."""
    assert len(mine) == len(theirs) >= 3
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        for name in ("loss", "gradient_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), f"{name} of step {step}"
    assert largest_difference(make("llama").state_dict(), my_model.state_dict()) > RATE
    assert largest_difference(their_model.state_dict(), my_model.state_dict()) <= 1e-4


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max((a[name] - b[name]).abs().max().item() for name in a)
