"""What each stage of a recipe will hold in memory, said before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lydian.models.adapters import AdapterSettings
from lydian.models.decode import PREFILL_TOKENS, CausalLM
from lydian.models.load import compute_dtype
from lydian.models.memory import (
    Held,
    cache_itemsize,
    decode_plan,
    engine_plan,
    free_bytes,
    frozen_plan,
    in_units,
    passes_plan,
    peak_bytes,
    published_bytes,
    reference_plan,
    shape_of,
    trained_plan,
)
from lydian.models.parameters import planned_model
from lydian.models.policy import recomputable_layers
from lydian.recipes.materials import engine_bytes
from lydian.recipes.recipe import STAGE_PREFIX, Recipe, Stage
from lydian.rollout.local import MEMORY_SHARE, MOST_SLOTS
from lydian.training.algorithms import ALGORITHMS
from lydian.training.stage import critic_settings

PROMPT_TOKENS = 256
"""Length of the longest prompt that is assumed where the data set sets no `max_tokens`."""

PLANNED_SHARE = 0.85
"""Of the memory that is free, what a plan may take: plans have been 88 to 117 % of peaks (docs/performance.md)."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage holds.

    limit           bytes that it may take
    num_recomputed  layers, the first ones, whose activations are recomputed in backward passes
    is_kept         freed memory stays with the process, which is fastest; there is room for it
    """

    held: tuple[Held, ...]
    limit: int
    num_recomputed: int
    is_kept: bool

    @property
    def peak(self) -> int:
        """The most bytes at one time."""
        return peak_bytes(self.held, is_kept=self.is_kept)

    @property
    def most_held(self) -> int:
        """Bytes above which freed memory goes back to the system: the plan, and what plans have been wrong by, within
        the limit; none where it is not kept."""
        return min(int(self.peak / PLANNED_SHARE), self.limit) if self.is_kept else 0

    @property
    def most_in_training(self) -> int:
        """The same between steps, where nothing but another step comes: what is not kept may grow to the limit."""
        return self.most_held or self.limit

    @property
    def summary(self) -> str:
        """One line."""
        parts = [f"{in_units(self.peak)} at most by plan"]
        if self.is_kept:
            parts.append("what is freed is kept")
        if self.num_recomputed:
            parts.append(f"activations of {self.num_recomputed} layers are recomputed")
        if self.peak > self.limit:
            advice = "lower stages.batching.batch_tokens or engine.memory_gib"
            parts.append(f"more than the limit of {in_units(self.limit)}: {advice}")
        return ", ".join(parts)


def memory_lines(recipe: Recipe) -> list[str]:
    """A table for each stage: what is held, by whom, when; the most at one time, beside what is free now.

    One line instead where the model's configuration is not on this machine. Raises what `planned_model` raises.
    """
    model = recipe.model
    base = planned_model(model.source, None, model.new_tokens)
    if base is None:
        return ["memory: the model's configuration is not here yet; nothing is planned"]
    free = free_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    lines = []
    for stage in recipe.stages:
        if ALGORITHMS[stage.algorithm].objective is None:
            continue  # nothing trains
        adapter = _adapter_of(recipe, stage)
        trained = base if adapter is None else planned_model(model.source, adapter, model.new_tokens)
        assert trained is not None  # the base's configuration is there
        plan = stage_plan(recipe, stage, base, trained, free=free)
        lines.append(f"memory of {stage.name}: {plan.summary}; {in_units(free)} free now")
        lines += [f"  {in_units(h.num_bytes):>10}  {h.of + ': ' + h.what:<60}  {h.during}" for h in plan.held]
    return lines


def _adapter_of(recipe: Recipe, stage: Stage) -> AdapterSettings | None:
    """The adapter that a stage trains: its own, or that of the stage that it starts from, or the model's."""
    stages = {stage.name: stage for stage in recipe.stages}
    while stage.adapter is None and stage.start in stages:
        stage = stages[stage.start]
    return stage.adapter or recipe.model.adapter


def stage_plan(recipe: Recipe, stage: Stage, base: CausalLM, trained: CausalLM, *, free: int) -> StagePlan:
    """What a stage holds where `free` bytes are free before anything is loaded.

    As few layers are recomputed as let its updates fit into `model.memory_gib`, or a share of what is free. Freed
    memory is kept if that fits too. The engine takes as many completions side by side as fit into its own budget.

    base     the model without adapters, and without values
    trained  what the stage trains: the model, with its adapter if it has one
    """
    algorithm, settings = ALGORITHMS[stage.algorithm], stage.settings
    critic = critic_settings(algorithm, settings)
    plan = trained_plan(trained, "policy")
    if critic is not None and critic.network == "own":
        own = _named(critic.start, base) if critic.start else trained
        plan += trained_plan(own, "critic", is_frozen_shared=not critic.start)
    if settings.restart:
        plan.append(replace(reference_plan(trained)[0], what="weights that rounds start from", of="policy"))
    if settings.kl is not None or "reference_logprobs" in algorithm.needs:
        plan += reference_plan(trained)
    plan += _beside(recipe, stage, base)
    plan.append(Held(what="a published version", of="policy", num_bytes=published_bytes(trained), during="sampling"))
    budget = engine_bytes(recipe)
    plan += _engine(recipe, stage, base, int(MEMORY_SHARE * free) if budget is None else budget)
    limit = recipe.model.memory_bytes
    limit = int(PLANNED_SHARE * free) if limit is None else limit
    is_frozen = not all(p.requires_grad for p in trained.parameters())
    for num_recomputed in range(max(1, len(recomputable_layers(trained)))):  # the last one's are needed at once
        passes = _passes(recipe, stage, base, is_frozen=is_frozen, num_recomputed=num_recomputed)
        if peak_bytes(held for held in plan + passes if held.during != "sampling") <= limit:
            break
    is_kept = not torch.cuda.is_available() and peak_bytes(plan + passes, is_kept=True) <= limit
    return StagePlan(tuple(plan + passes), limit, num_recomputed, is_kept)


def _beside(recipe: Recipe, stage: Stage, base: CausalLM) -> list[Held]:
    """Frozen models that teach or judge."""
    judges = [stage.verifier, recipe.benchmark.verifier, *(benchmark.verifier for benchmark in recipe.side.values())]
    named = [("teacher", stage.teacher)] if stage.teacher else []
    named += [("reward model", model) for v in judges if v for model in _reward_models({"name": v.name, **v.settings})]
    held = []
    for of, source in dict.fromkeys(named):
        held += frozen_plan(_named(source, base), of)
    return held


def _named(source: str, base: CausalLM) -> CausalLM:
    """The model of that name; one that is not here to be read is taken for another base model."""
    is_read = not source.startswith(STAGE_PREFIX)
    return (planned_model(source, None) if is_read else None) or base


def _reward_models(verifier: Mapping[str, Any]) -> list[str]:
    """The models in a verifier's settings and in those of its parts."""
    own = [verifier["model"]] if verifier.get("name") == "reward_model" and verifier.get("model") else []
    return own + [model for part in verifier.values() if isinstance(part, Mapping) for model in _reward_models(part)]


def _passes(recipe: Recipe, stage: Stage, base: CausalLM, *, is_frozen: bool, num_recomputed: int) -> list[Held]:
    """Forward and backward passes; a critic's come after the policy's, in the same memory."""
    return passes_plan(
        shape_of(base.config),
        tokens=stage.settings.batching.batch_tokens,
        num_parameters=sum(p.numel() for p in base.parameters()),
        is_bfloat16=compute_dtype(recipe.model.dtype) == torch.bfloat16,
        is_frozen=is_frozen,
        num_recomputed=num_recomputed,
    )


def _engine(recipe: Recipe, stage: Stage, base: CausalLM, budget: int) -> list[Held]:
    """The engine that samples evaluations and rollouts, its cache sized for the longer of the two; where rollouts are
    sampled in another type, the weights of a second one, which takes no more while it samples."""
    names = {stage.data, recipe.benchmark.data}
    prompt = max(recipe.data[name].settings.max_tokens or PROMPT_TOKENS for name in names)
    new = max(sampling.max_tokens for sampling in (stage.sampling, recipe.benchmark.sampling) if sampling is not None)
    shape, capacity = shape_of(base.config), prompt + new
    rows, chunk = decode_plan(
        shape, capacity=capacity, budget=budget, itemsize=cache_itemsize(base), most_tokens=PREFILL_TOKENS
    )
    size = {"rows": min(rows, MOST_SLOTS), "capacity": capacity, "chunk": chunk}
    plan = engine_plan(base, **size)
    if compute_dtype(recipe.engine.dtype) == torch.bfloat16:
        sampler = copy.deepcopy(base).to(torch.bfloat16)
        plan += [replace(held, of="sampler") for held in engine_plan(sampler, **size) if held.during == "always"]
    return plan
