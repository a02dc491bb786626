"""Judges the stages of a run, each on the same frozen benchmarks, and keeps summary.json."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from lydian.data.problems import Problem
from lydian.evaluation.benchmark import Benchmark
from lydian.evaluation.compare import compare
from lydian.evaluation.evaluate import evaluate
from lydian.evaluation.records import EvalReport
from lydian.models.weights import Weights
from lydian.recipes.journal import Ticker
from lydian.recipes.recipe import Recipe
from lydian.recipes.run_dir import RunDir, read_json
from lydian.rollout.engine import Engine
from lydian.verifiers.verifier import is_label_free

BASE = "base"
"""The name, in place of a stage's, of the model before training."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """What is judged with what; rows that are in summary.json already are not judged again.

    benchmark  the frozen evaluator
    side       further ones by name, which no stage trains for: they show what is lost
    """

    recipe: Recipe
    run: RunDir
    console: Console
    ticker: Ticker
    benchmark: Benchmark
    side: Mapping[str, Benchmark] = field(default_factory=dict)

    def problems(self) -> dict[str, Problem]:
        """All problems that are asked, by id."""
        return {problem.id: problem for b in (self.benchmark, *self.side.values()) for problem in b.problems}

    def policy(self, stage: str, start: str | None, engine: Engine, weights: Weights, *, began: float) -> None:
        """Evaluates the weights, and adds the stage's row with the paired difference to the stage it started from."""
        if self._is_done(stage):
            return
        engine.load(weights)
        report = self._evaluate(stage, None, engine, weights)
        before = None if start is None else EvalReport.load(self.run.evaluation_prefix(start))
        row = summary_row(report, before, start=start, seconds=time.monotonic() - began)
        row["side"] = {name: self._side_row(name, stage, engine, weights) for name in self.side}
        row["seconds"] = time.monotonic() - began
        self._append(row)
        accuracy = row["accuracy"]
        self.console.print(
            f"{stage}: accuracy {accuracy['value']:.1%} [{accuracy['low']:.1%}, {accuracy['high']:.1%}]",
            highlight=False,
        )

    def scorer(self, stage: str, start: str, measure: Callable[[], Mapping[str, Any]], *, began: float) -> None:
        """Adds the row of a stage that trained a reward model or a classifier, with what `measure` says of it."""
        if not self._is_done(stage):
            measured = dict(measure())
            self._append({"stage": stage, "start": start, "measured": measured, "seconds": time.monotonic() - began})

    def _evaluate(self, stage: str, side: str | None, engine: Engine, weights: Weights) -> EvalReport:
        prefix = self.run.evaluation_prefix(stage, side)
        partial = prefix.with_name(f"{prefix.name}.partial.jsonl")
        if prefix.with_name(f"{prefix.name}.json").exists() and not partial.exists():
            return EvalReport.load(prefix)
        report = evaluate(
            self.benchmark if side is None else self.side[side],
            engine,
            name=stage,
            weights_digest=weights.digest,
            progress=self.ticker.counting(f"{stage}  evaluated{f' on {side}' if side else ''}"),
            partial=partial,
        )
        report.save(prefix)
        partial.unlink()
        return report

    def _side_row(self, side: str, stage: str, engine: Engine, weights: Weights) -> dict[str, Any]:
        """A side benchmark's accuracy, and the difference to the base model: what was lost or gained on the way."""
        report = self._evaluate(stage, side, engine, weights)
        base = None if stage == BASE else EvalReport.load(self.run.evaluation_prefix(BASE, side))
        row = summary_row(report, base, start=None, seconds=0.0)
        return {"accuracy": row["accuracy"], "versus_base": row["versus_previous"]}

    def _is_done(self, stage: str) -> bool:
        return any(row["stage"] == stage for row in self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        path = self.run.path / "summary.json"
        return read_json(path)["stages"] if path.exists() else []

    def _append(self, row: dict[str, Any]) -> None:
        path = self.run.path / "summary.json"
        before = read_json(path)["peak_memory_bytes"] if path.exists() else 0
        rows = [*self._rows(), row]
        summary = {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "benchmark": self.benchmark.name,
            "num_problems": len(self.benchmark.problems),
            "wall_seconds": sum(row["seconds"] for row in rows),
            "peak_memory_bytes": max(before, peak_memory_bytes()),
            "stages": rows,
        }
        self.run.write_json("summary.json", summary)


def summary_row(report: EvalReport, before: EvalReport | None, *, start: str | None, seconds: float) -> dict[str, Any]:
    """A policy's row of summary.json: estimates of its report, and the paired difference to where it started from."""
    versus = None
    if before is not None:
        comparison = compare(before, report)
        difference = asdict(comparison.difference)
        versus = difference | {"p_value": comparison.p_value, "test": comparison.test}
        versus |= {"num_gained": len(comparison.gained), "num_lost": len(comparison.lost)}
    form = report.format()
    return {
        "stage": report.name,
        "start": start,
        "label_free": is_label_free(report.spec.verifier),
        "accuracy": asdict(report.accuracy()),
        "format": None if form is None else asdict(form),
        "outcomes": {outcome.value: share for outcome, share in report.outcome_shares().items()},
        "mean_tokens": report.mean_tokens(),
        "versus_previous": versus,
        "seconds": seconds,
    }


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else kibibytes * 1024  # macOS counts bytes, Linux KiB
