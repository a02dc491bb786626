"""A dry run: every stage of a recipe, two optimiser steps each, on the tiny model; all that goes wrong, at once.

What does not depend on the model's size is real: settings, data files where they are there, verifiers, credit,
objective, batching, saving of state. Data that is not there is replaced by generated problems, and that is said. The
tiny model solves next to nothing, so rollouts are also rewarded for an even number of characters: half of them are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lydian.errors import LydianError
from lydian.models.parameters import planned_parameters
from lydian.recipes.judge import BASE
from lydian.recipes.memory import memory_lines
from lydian.recipes.recipe import DataSet, DataSettings, Recipe, Stage, VerifierSettings, stages_named
from lydian.recipes.run import run_recipe, used_sets
from lydian.verifiers import VERIFIERS

NUM_ROWS = 8
NUM_GENERATED = 64
NUM_TOKENS = 24
EVEN = {"name": "pattern", "pattern": r"\A(..)*\Z"}
STAND_IN = {"num": NUM_ROWS, "split": "train", "min_level": 1, "max_level": 2, "seed": 0}
STAND_INS: Mapping[str, str] = {
    "problems": "arithmetic",
    "conversations": "arithmetic_solutions",
    "preferences": "arithmetic_preferences",
    "feedback": "arithmetic_feedback",
    "stepwise": "arithmetic_stepwise",
    "labelled": "arithmetic_labelled",
}
"""Generators that stand in for data that is not there, by kind."""


def check_recipe(recipe: Recipe, console: Console) -> list[str]:
    """Runs two steps of each stage on the tiny model; returns what went wrong, one entry a stage, empty if nothing."""
    missing = [
        name for name in recipe.with_parts(used_sets(recipe)) if not _is_there(recipe, recipe.data[name].settings)
    ]
    for name in missing:
        console.print(f"data.{name}: not there; generated rows stand in for it", highlight=False, markup=False)
    problems = []
    model = recipe.model
    try:
        line = planned_parameters(model.source, model.adapter, model.new_tokens)
        console.print(f"model: {line or 'not here yet; parameters are not counted'}", highlight=False, markup=False)
        for line in memory_lines(recipe):
            console.print(line, highlight=False, markup=False)
    except LydianError as error:
        problems.append(f"model: {error}")
    for stage in recipe.stages:
        small = _small(recipe, stage, missing)
        try:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                run_recipe(small, out, resume=False, console=Console(quiet=True))
                num_steps = _num_steps(out)
        except LydianError as error:
            problems.append(f"stage {stage.name}: {error}")
        else:
            console.print(f"stage {stage.name}: {num_steps} optimiser steps done", highlight=False, markup=False)
    return problems


def _num_steps(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


def _is_there(recipe: Recipe, settings: DataSettings) -> bool:
    return not settings.path or all(Path(recipe.locate(path)).exists() for path in settings.path)


def _small(recipe: Recipe, stage: Stage, missing: list[str]) -> Recipe:
    """The recipe with this stage alone, cut to two steps on few rows of a tiny model."""
    sampling = stage.sampling and replace(stage.sampling, max_tokens=min(stage.sampling.max_tokens, NUM_TOKENS))
    settings = replace(
        stage.settings,
        rounds=1 if stage.sampling is None else 2,
        epochs=1,
        batch_size=NUM_ROWS // 2 if stage.sampling is None else 0,
        problems_per_round=2,
        num_samples=min(stage.settings.num_samples, 4),
        self_test=False,  # the stand-in verifier below is not meant to pass
    )
    if settings.critic is not None:
        settings = replace(settings, critic=replace(settings.critic, start=""))
    benchmark = recipe.benchmark
    judged = replace(benchmark.sampling, max_tokens=min(benchmark.sampling.max_tokens, NUM_TOKENS))
    return replace(
        recipe,
        model=replace(recipe.model, source="tiny", dtype="float32"),
        data={name: _few(recipe, name, missing) for name in recipe.with_parts([benchmark.data, *stage.sets])},
        benchmark=replace(benchmark, sampling=judged, num_samples=min(benchmark.num_samples, 2)),
        side={},
        stages=(
            replace(
                stage,
                start=BASE,
                teacher=stage.teacher and "tiny",
                sampling=sampling,
                settings=settings,
                verifier=_generous(stage.verifier),
            ),
        ),
    )


def _generous(verifier: VerifierSettings | None) -> VerifierSettings | None:
    """The verifier, and beside it a rule that half of all completions keep and that decides.

    The rule alone stands in for one that reads tokens, not texts, since that cannot be a part of another; and for one
    with a model that an earlier stage would train.
    """
    if verifier is None:
        return None
    if getattr(VERIFIERS[verifier.name].make, "needs_tokens", False) or stages_named(verifier.settings):
        return VerifierSettings(name=EVEN["name"], settings={"pattern": EVEN["pattern"]})
    parts = {"own": {"name": verifier.name, **verifier.settings}, "even": EVEN}
    settings = {"parts": parts, "weights": {"own": 1.0, "even": 1.0}, "decided_by": "even"}
    return VerifierSettings(name="weighted", settings=settings)


def _few(recipe: Recipe, name: str, missing: list[str]) -> DataSet:
    data = recipe.data[name]
    if data.settings.mixture is not None:  # of sets that are cut themselves
        few = {"cap_examples": NUM_ROWS, "cap_tokens": None, "max_epochs": float(NUM_ROWS)}
        return replace(data, generator={**data.generator, **few})
    if name not in missing:
        fewer = {"num": min(data.generator["num"], NUM_GENERATED)} if data.settings.generator else {}
        settings = replace(data.settings, limit=NUM_ROWS, max_tokens=None)
        return replace(data, settings=settings, generator={**data.generator, **fewer})
    settings = DataSettings(kind=data.settings.kind, generator=STAND_INS[data.settings.kind])
    return DataSet(name=name, settings=settings, generator=STAND_IN)
