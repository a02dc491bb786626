"""Runs a recipe: base model, then one stage after another, each judged by the same frozen benchmark.

    evaluate base ─▶ for each stage: train ─▶ checkpoint ─▶ save model ─▶ evaluate ─▶ compare ─▶ summary, report

What is finished is on disk under its final name; `resume` looks at what is there and goes on. A stage starts from the
weights in memory at the end of the one before; they are also its reference policy.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence as Seq
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lydian.data.problems import Problem
from lydian.errors import RunError, VerifierError
from lydian.evaluation.compare import compare
from lydian.evaluation.evaluate import evaluate
from lydian.evaluation.records import EvalReport
from lydian.models.load import load_model
from lydian.models.save import save_model
from lydian.models.weights import Weights, weights_of
from lydian.recipes.journal import RunJournal, Ticker
from lydian.recipes.materials import (
    LoadedSet,
    build_benchmark,
    build_engine,
    build_policy,
    build_template,
    build_verifier,
    load_set,
)
from lydian.recipes.recipe import Recipe, Stage
from lydian.recipes.run_dir import RunDir, read_json
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS
from lydian.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydian.training.collect import Corpus, Rollouts, Source, derived_seed
from lydian.training.learner import Learner
from lydian.training.loop import Position, train
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers.self_test import require_sound

BASE = "base"


def run_recipe(recipe: Recipe, out: Path, *, resume: bool, console: Console) -> dict[str, Any]:
    """Runs or resumes a recipe in the folder `out`; returns the summary that also stands in summary.json.

    Raises the errors of its parts; what was finished before stays, and `resume` goes on from there.
    """
    open_run = RunDir.resume if resume else RunDir.create
    with open_run(out, recipe.as_dict()) as run:
        try:
            return _Run(recipe, run, console).to_end()
        except OSError as error:
            raise RunError(
                where=error.filename or str(out),
                given=f"{type(error).__name__}: {error}",
                expected="a disk that can be written",
                fix=f"What was finished stays: mend the cause, then go on with `lydian run --resume {out}`.",
            ) from error


class _Run:
    """One recipe in the course of being run."""

    def __init__(self, recipe: Recipe, run: RunDir, console: Console) -> None:
        self.recipe = recipe
        self.run = run
        self.console = console
        self.ticker = Ticker(console)
        self.checkpoint_path = run.checkpoints / "checkpoint.pt"
        self.checkpoint = load_checkpoint(self.checkpoint_path)
        self.loaded, self.policy = build_policy(recipe)
        self.template = build_template(recipe, self.loaded)
        self.sets = {name: self._load_set(name) for name in used_sets(recipe)}
        self.benchmark = build_benchmark(recipe, self.sets[recipe.benchmark.data].items, self.template)
        self.engine = build_engine(recipe, self.template)
        self.version = 0
        self._write_manifest()

    def to_end(self) -> dict[str, Any]:
        """All that is not done yet."""
        self._evaluate(BASE, weights_of(self.policy.model, self.version), time.monotonic())
        for index, stage in enumerate(self.recipe.stages, start=1):
            self._stage(index, stage)
        self.run.mark_finished()
        return read_json(self.run.path / "summary.json")

    def _stage(self, index: int, stage: Stage) -> None:
        checkpoint = self.checkpoint
        if checkpoint is not None and checkpoint.stage > index:
            return
        here = checkpoint if checkpoint is not None and checkpoint.stage == index else None
        began = time.monotonic() - (here.seconds if here else 0.0)
        learner = self._learner(stage)
        if here is not None:
            learner.load_state(here.learner)
        if here is None or not here.is_done:
            self._train(index, stage, learner, here, began)
        self.version = learner.version
        model_path = self.run.model_path(stage.name)
        if not model_path.exists():
            save_model(self.loaded.model, self.loaded.tokenizer, model_path, merge=False)
        self._evaluate(stage.name, learner.weights(), began)

    def _train(self, index: int, stage: Stage, learner: Learner, here: Checkpoint | None, began: float) -> None:
        start = here.position if here else Position()
        self.run.trim_metrics(stage=stage.name, step=start.step)
        self.console.print(f"{stage.name}: {ALGORITHMS[stage.algorithm].summary}", highlight=False, markup=False)

        def save(position: Position, *, is_done: bool = False) -> None:
            state = Checkpoint(
                stage=index,
                is_done=is_done,
                position=position,
                seconds=time.monotonic() - began,
                learner=learner.state(),
            )
            save_checkpoint(self.checkpoint_path, state)

        source = self._source(stage)
        source.load(learner.weights())
        journal = RunJournal(self.run, stage.name, self.template, self.ticker, save)
        seed = derived_seed(self.recipe.seed, stage.name)
        end = train(learner, source, stage.settings, journal, seed=seed, start=start)
        save(end, is_done=True)

    def _learner(self, stage: Stage) -> Learner:
        return make_learner(
            self.policy,
            ALGORITHMS[stage.algorithm],
            stage.settings,
            objective=stage.objective,
            max_tokens=stage.sampling.max_tokens if stage.sampling else None,
            version=self.version,
        )

    def _source(self, stage: Stage) -> Source:
        items = self.sets[stage.data].items
        algorithm = ALGORITHMS[stage.algorithm]
        if algorithm.data != "problems":
            return Corpus(encode_items(items, self.template))
        assert stage.sampling is not None and stage.verifier is not None  # the recipe binds both for problems
        verifier = build_verifier(stage.verifier)
        for problem in items:
            verifier.check(problem)
        settings = stage.settings
        if settings.self_test:
            require_sound(verifier, items, where=f"stage {stage.name}")
        judge = self.benchmark.verifier
        return Rollouts(
            engine=self.engine,
            template=self.template,
            verifier=verifier,
            problems=items,
            sampling=stage.sampling,
            num_samples=settings.num_samples,
            problems_per_round=settings.problems_per_round,
            credit=make_credit(algorithm, settings, advantage=stage.advantage, max_tokens=stage.sampling.max_tokens),
            seed=derived_seed(stage.sampling.seed, stage.name),
            most_draws=settings.most_draws,
            heldout=judge if judge.fingerprint != verifier.fingerprint and self._can_judge(items) else None,
        )

    def _can_judge(self, problems: Seq[Problem]) -> bool:
        """Whether the benchmark's verifier reads these problems' answers too."""
        try:
            for problem in problems:
                self.benchmark.verifier.check(problem)
        except VerifierError:
            return False
        return True

    def _evaluate(self, stage: str, weights: Weights, began: float) -> None:
        """Judges the weights unless that is done, and adds the stage's row to the summary."""
        prefix = self.run.evaluation_prefix(stage)
        rows = self._finished_rows()
        if any(row["stage"] == stage for row in rows):
            return
        self.engine.load(weights)
        partial = prefix.with_name(f"{prefix.name}.partial.jsonl")
        report = evaluate(
            self.benchmark,
            self.engine,
            name=stage,
            weights_digest=weights.digest,
            progress=self.ticker.counting(f"{stage}  evaluated"),
            partial=partial,
        )
        report.save(prefix)
        partial.unlink()
        previous = EvalReport.load(self.run.evaluation_prefix(rows[-1]["stage"])) if rows else None
        row = summary_row(report, previous, seconds=time.monotonic() - began)
        self._write_summary([*rows, row])
        accuracy = row["accuracy"]
        self.console.print(
            f"{stage}: accuracy {accuracy['value']:.1%} [{accuracy['low']:.1%}, {accuracy['high']:.1%}]",
            highlight=False,
        )

    def _finished_rows(self) -> list[dict[str, Any]]:
        path = self.run.path / "summary.json"
        return read_json(path)["stages"] if path.exists() else []

    def _write_summary(self, rows: list[dict[str, Any]]) -> None:
        path = self.run.path / "summary.json"
        before = read_json(path)["peak_memory_bytes"] if path.exists() else 0
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

    def _load_set(self, name: str) -> LoadedSet:
        loaded = load_set(self.recipe, name, self.template)
        self.console.print(f"data.{name}: {len(loaded.items)} rows", *loaded.notes[:5], sep="; ", highlight=False)
        return loaded

    def _write_manifest(self) -> None:
        facts = {"source": self.loaded.source, "digest": self.loaded.digest, "licence": self.loaded.licence}
        self.run.write_manifest(
            name=self.recipe.name,
            seed=self.recipe.seed,
            command=sys.argv,
            recipe_digest=self.recipe.digest,
            model=facts,
            data=[loaded.facts for loaded in self.sets.values()],
        )
        for loaded in self.sets.values():
            for note in loaded.notes:
                self.run.append_event(stage=BASE, kind="data", message=f"{loaded.facts['name']}: {note}")


def used_sets(recipe: Recipe) -> list[str]:
    """The data sets that the benchmark and the stages name, each once."""
    return list(dict.fromkeys([recipe.benchmark.data, *(stage.data for stage in recipe.stages)]))


def summary_row(report: EvalReport, previous: EvalReport | None, *, seconds: float) -> dict[str, Any]:
    """A stage's row of summary.json: estimates of its report, and the paired difference to the stage before."""
    versus = None
    if previous is not None:
        comparison = compare(previous, report)
        difference = asdict(comparison.difference)
        versus = difference | {"p_value": comparison.p_value, "test": comparison.test}
        versus |= {"num_gained": len(comparison.gained), "num_lost": len(comparison.lost)}
    form = report.format()
    return {
        "stage": report.name,
        "accuracy": asdict(report.accuracy()),
        "format": None if form is None else asdict(form),
        "outcomes": {outcome.value: share for outcome, share in report.outcome_shares().items()},
        "mean_tokens": report.mean_tokens(),
        "versus_previous": versus,
        "seconds": seconds,
    }


def evaluate_model(source: str, recipe: Recipe, out: Path, console: Console) -> EvalReport:
    """Judges any checkpoint with a recipe's benchmark and saves the report under the prefix `out`."""
    recipe = replace(recipe, model=replace(recipe.model, source=source, adapter=None))
    loaded = load_model(source)
    template = build_template(recipe, loaded)
    problems: tuple[Problem, ...] = load_set(recipe, recipe.benchmark.data, template).items
    benchmark = build_benchmark(recipe, problems, template)
    engine = build_engine(recipe, template)
    progress = Ticker(console).counting("evaluated")
    report = evaluate(benchmark, engine, name=source, weights_digest=loaded.digest, progress=progress)
    report.save(out)
    return report


def peak_memory_bytes() -> int:
    """The largest resident memory of this process so far."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else kibibytes * 1024  # macOS counts bytes, Linux KiB
