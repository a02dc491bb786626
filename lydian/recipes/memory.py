"""What each stage of a recipe will hold in memory, said before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

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
from lydian.models.prefix import is_prefix
from lydian.recipes.recipe import STAGE_PREFIX, Recipe, Stage
from lydian.rollout.local import MEMORY_SHARE, MOST_SLOTS
from lydian.training.algorithms import ALGORITHMS
from lydian.training.stage import critic_settings

PROMPT_TOKENS = 256
"""Length of the longest prompt that is assumed where the data set sets no `max_tokens`."""

UPDATES_SHARE = 0.85
"""Of the memory that is free, what updates may take: plans have been 84 to 116 % of what was measured."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage holds, with the activations of its first `num_recomputed` layers recomputed in backward passes."""

    held: tuple[Held, ...]
    num_recomputed: int

    @property
    def peak(self) -> int:
        """The most bytes at one time."""
        return peak_bytes(self.held)

    @property
    def most_held(self) -> int:
        """What a process takes that keeps to the plan, within what plans have been wrong by."""
        return int(self.peak / UPDATES_SHARE)

    @property
    def summary(self) -> str:
        """One line."""
        layers = f"; activations of {self.num_recomputed} layers are recomputed" if self.num_recomputed else ""
        return f"{in_units(self.peak)} at most by plan{layers}"


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
        adapter = stage.adapter or model.adapter
        trained = base if adapter is None else planned_model(model.source, adapter, model.new_tokens)
        assert trained is not None  # the base's configuration is there
        plan = stage_plan(recipe, stage, base, trained, free=free)
        verdict = "" if plan.peak <= free else "; too much: lower stages.batching.batch_tokens or engine.memory_gib"
        lines.append(f"memory of {stage.name}: {in_units(plan.peak)} at most; {in_units(free)} free now{verdict}")
        lines += [f"  {in_units(h.num_bytes):>10}  {h.of + ': ' + h.what:<40}  {h.during}" for h in plan.held]
    return lines


def stage_plan(recipe: Recipe, stage: Stage, base: CausalLM, trained: nn.Module, *, free: int) -> StagePlan:
    """What a stage holds where `free` bytes are free before anything is loaded.

    As few layers are recomputed as let its updates fit into `model.memory_gib`, or a share of what is free; none with
    a prefix, where that cannot be. The engine takes as many completions side by side as fit into its own budget.

    base     the model without adapters, and without values
    trained  what the stage trains: the model, with its adapter if it has one
    """
    algorithm, settings = ALGORITHMS[stage.algorithm], stage.settings
    critic = critic_settings(algorithm, settings)
    plan = trained_plan(trained, "policy")
    if critic is not None and critic.network == "own":
        own = _named(critic.start, base) if critic.start else trained
        plan += trained_plan(own, "critic", is_frozen_shared=not critic.start)
    if settings.kl is not None or "reference_logprobs" in algorithm.needs:
        plan += reference_plan(trained)
    plan += _beside(recipe, stage, base)
    plan.append(Held(what="a published version", of="policy", num_bytes=published_bytes(trained), during="sampling"))
    budget = recipe.engine.memory_bytes
    plan += _engine(recipe, stage, base, int(MEMORY_SHARE * free) if budget is None else budget)
    most = recipe.model.memory_bytes or int(UPDATES_SHARE * free)
    most_recomputed = 0 if is_prefix(trained) else shape_of(base.config).layers - 1  # the last one's are needed at once
    for num_recomputed in range(most_recomputed + 1):
        passes = _passes(recipe, stage, base, num_recomputed=num_recomputed)
        if sum(held.num_bytes for held in plan + passes if held.during != "sampling") <= most:
            break
    return StagePlan(tuple(plan + passes), num_recomputed)


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


def _passes(recipe: Recipe, stage: Stage, base: CausalLM, *, num_recomputed: int) -> list[Held]:
    """Forward and backward passes; a critic's come after the policy's, in the same memory."""
    return passes_plan(
        shape_of(base.config),
        tokens=stage.settings.batching.batch_tokens,
        num_parameters=sum(p.numel() for p in base.parameters()),
        is_bfloat16=compute_dtype(recipe.model.dtype) == torch.bfloat16,
        is_frozen=(stage.adapter or recipe.model.adapter) is not None,
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
