"""Runs a recipe: base model, then one stage after another, each judged by the same frozen benchmark.

    evaluate base ─▶ for each stage: train ─▶ checkpoint ─▶ save model ─▶ evaluate ─▶ compare ─▶ summary, report

What is finished is on disk under its final name; `resume` looks at what is there and goes on. A stage starts from the
weights of the stage it names, by default the last that trained a policy; they are also its reference policy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lydian.data.forest import Item, sequences_of
from lydian.data.problems import Problem
from lydian.errors import RunError, VerifierError
from lydian.evaluation.benchmark import Benchmark
from lydian.evaluation.evaluate import evaluate
from lydian.evaluation.records import EvalReport
from lydian.evaluation.reward_models import evaluate_judging, judging_facts
from lydian.models.adapters import AdapterSettings
from lydian.models.allocator import held_bytes
from lydian.models.load import load_model
from lydian.models.memory import free_bytes
from lydian.models.parameters import describe_parameters, outline
from lydian.models.save import save_model
from lydian.models.teacher import Teacher
from lydian.models.weights import Weights, weights_of
from lydian.recipes.journal import RunJournal, Ticker
from lydian.recipes.judge import BASE, Judge
from lydian.recipes.materials import (
    LoadedSet,
    build_benchmark,
    build_engine,
    build_policy,
    build_sampler,
    build_template,
    build_verifier,
    load_set,
    make_head,
)
from lydian.recipes.memory import StagePlan, stage_plan
from lydian.recipes.recipe import BenchmarkSettings, Recipe, Stage, VerifierSettings, with_stage_folders
from lydian.recipes.run_dir import RunDir, read_json
from lydian.rollout.best_of import BestOf
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydian.training.collect import Corpus, Rollouts, Source, derived_seed
from lydian.training.critic import ActorCritic
from lydian.training.given import WithGiven
from lydian.training.learner import Learner
from lydian.training.loop import AnyLearner, Position, train
from lydian.training.rationalise import with_rationales
from lydian.training.reference import with_reference_logprobs
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers.self_test import require_sound
from lydian.verifiers.verifier import Verifier, is_label_free


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
        self.free = free_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self.held = held_bytes()
        self.checkpoint_path = run.checkpoints / "checkpoint.pt"
        self.checkpoint = load_checkpoint(self.checkpoint_path)
        self.loaded, self.policy = build_policy(recipe, run.model_path(BASE))
        self._say_parameters()
        self.template = build_template(recipe, self.loaded)
        self.sets = {name: self._load_set(name) for name in used_sets(recipe)}
        self.engine = build_engine(recipe, self.template)
        self.sampler = build_sampler(recipe, self.template, self.engine)
        self.console.print(f"model: {self._precision()}", highlight=False, markup=False)
        self.judge = Judge(
            recipe=recipe,
            run=run,
            console=console,
            ticker=self.ticker,
            benchmark=self._benchmark(recipe.benchmark),
            side={name: self._benchmark(settings) for name, settings in recipe.side.items()},
        )
        self.version = 0
        self.holds = BASE
        self._write_manifest()

    def to_end(self) -> dict[str, Any]:
        """All that is not done yet."""
        weights = weights_of(self.policy.model, self.version, with_adapter=False)
        self.judge.policy(BASE, None, self.engine, weights, began=time.monotonic())
        for index, stage in enumerate(self.recipe.stages, start=1):
            if self.checkpoint is None or self.checkpoint.stage <= index:
                self._stage(index, stage)
        self.run.mark_finished()
        return read_json(self.run.path / "summary.json")

    def _stage(self, index: int, stage: Stage) -> None:
        checkpoint = self.checkpoint
        here = checkpoint if checkpoint is not None and checkpoint.stage == index else None
        began = time.monotonic() - (here.seconds if here else 0.0)
        algorithm = ALGORITHMS[stage.algorithm]
        self._go_to(stage.start, stage.adapter)
        if algorithm.objective is None:
            self.judge.policy(stage.name, stage.start, self._best_of(stage), self._weights(), began=began)
            return
        if not algorithm.is_policy:
            self.policy.head = make_head(algorithm, self.policy, self.sets[stage.data].items)
        plan = stage_plan(self.recipe, stage, outline(self.policy.model), self.policy.model, free=self.free)
        self.policy.recompute(plan.num_recomputed)
        learner = self._learner(stage)
        if here is not None:
            learner.load_state(here.learner)
            self.checkpoint, here = None, replace(here, learner={})  # its weights and moments are the learner's now
        if here is None or not here.is_done:
            self._train(index, stage, learner, plan, here, began)
        self.version, self.holds = learner.version, stage.name
        self._save(stage, learner)
        if algorithm.is_policy:
            self.judge.policy(stage.name, stage.start, self.engine, learner.weights(), began=began)
        else:
            self.judge.scorer(stage.name, stage.start, lambda: self._measured(stage), began=began)
        self.policy.head = None

    def _save(self, stage: Stage, learner: AnyLearner) -> None:
        path = self.run.model_path(stage.name)
        if path.exists():
            return
        head = self.policy.head
        if head is not None:
            settings = self.recipe.template.settings
            head.facts |= judging_facts(self.policy, self.sets[stage.data].items, self.template, settings)
        critic = learner.critic.policy if isinstance(learner, ActorCritic) else None
        save_model(self.loaded.model, self.loaded.tokenizer, path, merge=False, head=head, critic=critic)

    def _go_to(self, start: str, adapter: AdapterSettings | None) -> None:
        """Takes up the weights that a stage starts from: those in memory, or else that stage's as they were saved."""
        if start == self.holds and adapter is None:
            return
        del self.loaded, self.policy  # room first: two models need not be in memory
        trained = None if start == BASE else self.run.model_path(start)
        self.loaded, self.policy = build_policy(self.recipe, self.run.model_path(BASE), trained, adapter)
        self.holds = start
        self._say_parameters()

    def _say_parameters(self) -> None:
        self.console.print(f"model: {describe_parameters(self.policy.model)}", highlight=False, markup=False)

    def _note(self, stage: Stage, kind: str, message: str) -> None:
        self.run.append_event(stage=stage.name, kind=kind, message=message)

    def _precision(self) -> str:
        """What `auto` means on this machine, and how its layers attend."""
        training, sampling = (str(d).removeprefix("torch.") for d in (self.policy.compute_dtype, self.sampler.dtype))
        attention = self.policy.attention if self.policy.layout != "single" else "one sequence a row"
        refused = "".join(f" ({name}: {reason})" for name, reason in self.policy.refused.items())
        return (
            f"computes in {training}, attention over {attention}{refused}; "
            f"samples rollouts in {sampling} and benchmarks in float32"
        )

    def _weights(self) -> Weights:
        return weights_of(self.policy.model, self.version)

    def _best_of(self, stage: Stage) -> BestOf:
        assert stage.sampling is not None and stage.verifier is not None  # the recipe binds both for problems
        return BestOf(
            engine=self.engine,
            template=self.template,
            verifier=self._verifier(stage.verifier),
            problems=self.judge.problems(),
            sampling=stage.sampling,
            num_samples=stage.settings.num_samples,
        )

    def _measured(self, stage: Stage) -> dict[str, Any]:
        """What held-out data say of a reward model or classifier."""
        assert stage.heldout is not None  # the recipe demands it
        return evaluate_judging(self.policy, self.sets[stage.heldout].items, self.template).as_row()

    def _verifier(self, settings: VerifierSettings) -> Verifier:
        return build_verifier(replace(settings, settings=with_stage_folders(settings.settings, self.run.model_path)))

    def _benchmark(self, settings: BenchmarkSettings) -> Benchmark:
        return build_benchmark(settings, self.sets[settings.data].items, self.template)

    def _train(
        self, index: int, stage: Stage, learner: AnyLearner, plan: StagePlan, here: Checkpoint | None, began: float
    ) -> None:
        start = here.position if here else Position()
        self.run.trim_metrics(stage=stage.name, step=start.step)
        self._note(stage, "precision", self._precision())
        self._note(stage, "memory", plan.summary)
        summary = f"{stage.name}: {ALGORITHMS[stage.algorithm].summary} Memory: {plan.summary}."
        self.console.print(summary, highlight=False, markup=False)

        def save(position: Position, *, is_done: bool = False) -> None:
            state = Checkpoint(
                stage=index,
                is_done=is_done,
                position=position,
                seconds=time.monotonic() - began,
                learner=learner.state(),
            )
            save_checkpoint(self.checkpoint_path, state)

        source = self._source(stage, learner)
        source.load(learner.weights())
        journal = RunJournal(self.run, stage.name, self.template, self.ticker, save)
        seed = derived_seed(self.recipe.seed, stage.name)
        bounds = {"most_held": self.held + plan.most_held, "most_in_training": self.held + plan.most_in_training}
        end = train(learner, source, stage.settings, journal, seed=seed, start=start, **bounds)
        save(end, is_done=True)

    def _learner(self, stage: Stage) -> AnyLearner:
        settings = stage.settings
        if settings.critic is not None:
            start = with_stage_folders(settings.critic.start, self.run.model_path)
            settings = replace(settings, critic=replace(settings.critic, start=start))
        return make_learner(
            self.policy,
            ALGORITHMS[stage.algorithm],
            settings,
            objective=stage.objective,
            max_tokens=stage.sampling.max_tokens if stage.sampling else None,
            version=self.version,
            teacher=self._teacher(stage),
            texts=self._encoded(settings.ptx.data if settings.ptx else None),
            seed=derived_seed(self.recipe.seed, stage.name),
        )

    def _teacher(self, stage: Stage) -> Teacher | None:
        if stage.teacher is None:
            return None
        teacher = Teacher.of(load_model(with_stage_folders(stage.teacher, self.run.model_path)), self.loaded)
        for note in teacher.notes:
            self._note(stage, "teacher", note)
        return teacher

    def _encoded(self, name: str | None) -> list[Item]:
        return [] if name is None else encode_items(self.sets[name].items, self.template)

    def _source(self, stage: Stage, learner: AnyLearner) -> Source:
        algorithm = ALGORITHMS[stage.algorithm]
        if algorithm.data == "problems":
            rollouts = self._rollouts(stage, algorithm)
            if algorithm.mixes is None:
                return with_rationales(rollouts, stage.settings)
            given = sequences_of(self._encoded(stage.given_data))
            return WithGiven(rollouts=rollouts, given=given, on_policy_share=stage.settings.on_policy_share)
        items = self._encoded(stage.data)
        if isinstance(learner, Learner):
            path = self.run.checkpoints / f"{self.run.numbered(stage.name)}.reference.safetensors"
            fingerprint = self.template.fingerprint
            items = with_reference_logprobs(items, learner, stage.settings, path=path, template=fingerprint)
        return Corpus(items)

    def _rollouts(self, stage: Stage, algorithm: Algorithm) -> Rollouts:
        problems, settings = self.sets[stage.data].items, stage.settings
        assert stage.sampling is not None  # the recipe binds it for problems
        verifier = self._sound_verifier(stage)
        judge = self.judge.benchmark.verifier
        is_watched = verifier is None or judge.fingerprint != verifier.fingerprint
        return Rollouts(
            engine=self.sampler,
            template=self.template,
            verifier=verifier,
            problems=problems,
            sampling=stage.sampling,
            num_samples=settings.num_samples,
            problems_per_round=settings.problems_per_round,
            credit=make_credit(algorithm, settings, advantage=stage.advantage, max_tokens=stage.sampling.max_tokens),
            seed=derived_seed(stage.sampling.seed, stage.name),
            most_draws=settings.most_draws,
            heldout=judge if is_watched and self._can_judge(problems) else None,
        )

    def _sound_verifier(self, stage: Stage) -> Verifier | None:
        """The stage's verifier, tried on its problems; None where a teacher judges, and nothing else was asked for."""
        if stage.verifier is None:
            return None
        verifier, problems = self._verifier(stage.verifier), self.sets[stage.data].items
        for problem in problems:
            verifier.check(problem)
        if is_label_free(verifier.fingerprint):
            message = f"{verifier.name} reads no gold answer: reward and agreement of this stage are no accuracy"
            self._note(stage, "label-free", message)
        if stage.settings.self_test:
            require_sound(verifier, problems, where=f"stage {stage.name}")
        return verifier

    def _can_judge(self, problems: Seq[Problem]) -> bool:
        """Whether the benchmark's verifier reads these problems' answers too."""
        try:
            for problem in problems:
                self.judge.benchmark.verifier.check(problem)
        except VerifierError:
            return False
        return True

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
    """The data sets that the benchmarks and the stages name, each once."""
    judged = [recipe.benchmark.data, *(benchmark.data for benchmark in recipe.side.values())]
    return list(dict.fromkeys([*judged, *(name for stage in recipe.stages for name in stage.sets)]))


def evaluate_model(source: str, recipe: Recipe, out: Path, console: Console) -> EvalReport:
    """Judges any checkpoint with a recipe's benchmark and saves the report under the prefix `out`."""
    recipe = replace(recipe, model=replace(recipe.model, source=source, adapter=None, new_tokens=()))
    loaded = load_model(source)
    template = build_template(recipe, loaded)
    problems: tuple[Problem, ...] = load_set(recipe, recipe.benchmark.data, template).items
    benchmark = build_benchmark(recipe.benchmark, problems, template)
    engine = build_engine(recipe, template)
    progress = Ticker(console).counting("evaluated")
    report = evaluate(benchmark, engine, name=source, weights_digest=loaded.digest, progress=progress)
    report.save(out)
    return report
