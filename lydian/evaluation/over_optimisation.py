"""Over-optimisation made visible: a proxy reward rises while what it stands for falls, as the policy moves away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from lydian.errors import InputError

LEAST_ROUNDS = 6
"""Rounds before first and last are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round of policy optimisation.

    round  from 0
    proxy  mean reward that the policy was trained on
    gold   accuracy of the same completions by the held-out verifier; None where it was not measured
    kl     KL to the policy at the stage's start, in nats a completion; None where it was not measured
    """

    round: int
    proxy: float
    gold: float | None
    kl: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A stage's rounds, and what they say.

    name            of the stage
    best            the round of the highest gold accuracy; None where it was never measured
    proxy_change    mean proxy reward of the last third of the rounds minus that of the first; None below six rounds
    gold_change     the same of gold accuracy
    loss_from_best  gold accuracy of the best round minus that of the last
    """

    name: str
    rounds: tuple[Round, ...]
    best: Round | None
    proxy_change: float | None
    gold_change: float | None
    loss_from_best: float | None

    @property
    def is_over_optimised(self) -> bool | None:
        """Whether the proxy rose while gold fell; None where that was not measured."""
        if self.proxy_change is None or self.gold_change is None:
            return None
        return self.proxy_change > 0 > self.gold_change

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**asdict(self), "is_over_optimised": self.is_over_optimised}


def course_of(name: str, metrics: Iterable[Mapping[str, Any]]) -> Course:
    """A stage's course from the lines of a run's metrics.jsonl.

    metrics  one {"stage", "round", "metrics": {"reward", "heldout_accuracy", "kl_reference", "mean_tokens"}} a step;
             lines of other stages are left out. KL is kl_reference · mean_tokens, both of a round's first step, when
             the policy is still the one that sampled

    To measure KL without a penalty, train with kl = {place = "loss", coef = 0}. Raises InputError for a stage without
    rewards. Source: Gao et al. (2022), "Scaling laws for reward model overoptimization", arXiv:2210.10760.

    >>> line = {"stage": "ppo", "round": 0, "metrics": {"reward": 0.5, "kl_reference": 0.02, "mean_tokens": 50.0}}
    >>> course_of("ppo", [line]).rounds
    (Round(round=0, proxy=0.5, gold=None, kl=1.0),)
    """
    first: dict[int, Mapping[str, float]] = {}
    for line in metrics:
        if line.get("stage") == name and "reward" in line.get("metrics", {}):
            first.setdefault(int(line["round"]), line["metrics"])
    if not first:
        raise InputError(
            where=f"the course of stage {name!r}",
            given="no round with a reward",
            expected="the metrics of a stage that samples and is rewarded",
            fix="Name another stage of the run.",
        )
    rounds = tuple(_round(number, first[number]) for number in sorted(first))
    measured = [found for found in rounds if found.gold is not None]
    best = max(measured, key=lambda found: found.gold or 0.0, default=None)
    return Course(
        name=name,
        rounds=rounds,
        best=best,
        proxy_change=_change([found.proxy for found in rounds]),
        gold_change=_change([found.gold for found in measured if found.gold is not None]),
        loss_from_best=None if best is None else (best.gold or 0.0) - (measured[-1].gold or 0.0),
    )


def course_lines(course: Course) -> list[str]:
    """The course as a table in text: KL, proxy and gold of each round, and one line that says what became of it."""

    def shown(value: float | None, form: str) -> str:
        return "not measured" if value is None else format(value, form)

    lines = [f"{'round':>5}  {'KL':>12}  {'proxy':>10}  {'gold':>12}"]
    lines += [
        f"{found.round:>5}  {shown(found.kl, '.3f'):>12}  {found.proxy:>10.4g}  {shown(found.gold, '.1%'):>12}"
        for found in course.rounds
    ]
    verdict = {True: "over-optimised", False: "not over-optimised", None: "not known"}[course.is_over_optimised]
    proxy, gold = shown(course.proxy_change, "+.4g"), shown(course.gold_change, "+.1%")
    return [*lines, f"{verdict}: proxy {proxy}, gold {gold}, first to last third; {_best(course)}"]


def _best(course: Course) -> str:
    if course.best is None or course.best.gold is None or course.loss_from_best is None:
        return "gold was not measured"
    return f"gold was best in round {course.best.round} at {course.best.gold:.1%}, then {-course.loss_from_best:+.1%}"


def _round(number: int, metrics: Mapping[str, float]) -> Round:
    per_token = metrics.get("kl_reference")
    return Round(
        round=number,
        proxy=metrics["reward"],
        gold=metrics.get("heldout_accuracy"),
        kl=None if per_token is None else per_token * metrics["mean_tokens"],
    )


def _change(values: Seq[float]) -> float | None:
    if len(values) < LEAST_ROUNDS:
        return None
    size = len(values) // 3
    return fmean(values[-size:]) - fmean(values[:size])
