"""What each stage of a recipe will hold in memory, said before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

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
from lydian.recipes.recipe import STAGE_PREFIX, Recipe, Stage
from lydian.rollout.local import MEMORY_SHARE, MOST_SLOTS
from lydian.training.algorithms import ALGORITHMS
from lydian.training.stage import critic_settings

PROMPT_TOKENS = 256
"""Length of the longest prompt that is assumed where the data set sets no `max_tokens`."""


def memory_lines(recipe: Recipe) -> list[str]:
    """A table for each stage: what is held, by whom, when; the most at one time, beside what is free now.

    One line instead where the model's configuration is not on this machine. Raises what `planned_model` raises.
    """
    base = planned_model(recipe.model.source, None, recipe.model.new_tokens)
    if base is None:
        return ["memory: the model's configuration is not here yet; nothing is planned"]
    free = free_bytes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    lines = []
    for stage in recipe.stages:
        if ALGORITHMS[stage.algorithm].objective is None:
            continue  # nothing trains
        budget = recipe.engine.memory_bytes
        plan = stage_plan(recipe, stage, base, budget=int(MEMORY_SHARE * free) if budget is None else budget)
        peak = peak_bytes(plan)
        verdict = "" if peak <= free else "; too much: lower stages.batching.batch_tokens or set is_checkpointed"
        lines.append(f"memory of {stage.name}: {in_units(peak)} at most; {in_units(free)} free now{verdict}")
        lines += [f"  {in_units(h.num_bytes):>10}  {h.of + ': ' + h.what:<40}  {h.during}" for h in plan]
    return lines


def stage_plan(recipe: Recipe, stage: Stage, base: CausalLM, *, budget: int) -> list[Held]:
    """What a stage holds; the engine takes as many completions side by side as fit into `budget` bytes."""
    algorithm, settings, model = ALGORITHMS[stage.algorithm], stage.settings, recipe.model
    adapter = stage.adapter or model.adapter
    trained = base if adapter is None else planned_model(model.source, adapter, model.new_tokens)
    assert trained is not None  # the base's configuration is there
    critic = critic_settings(algorithm, settings)
    plan = trained_plan(trained, "policy")
    if critic is not None and critic.network == "own":
        own = _named(critic.start, base) if critic.start else trained
        plan += trained_plan(own, "critic", is_frozen_shared=not critic.start)
    if settings.kl is not None or "reference_logprobs" in algorithm.needs:
        plan += reference_plan(trained)
    plan += _beside(recipe, stage, base)
    plan += _passes(recipe, stage, base, is_frozen=adapter is not None)
    plan.append(Held(what="a published version", of="policy", num_bytes=published_bytes(trained), during="sampling"))
    return plan + _engine(recipe, stage, base, budget)


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


def _passes(recipe: Recipe, stage: Stage, base: CausalLM, *, is_frozen: bool) -> list[Held]:
    """Forward and backward passes; a critic's come after the policy's, in the same memory."""
    return passes_plan(
        shape_of(base.config),
        tokens=stage.settings.batching.batch_tokens,
        num_parameters=sum(p.numel() for p in base.parameters()),
        is_bfloat16=compute_dtype(recipe.model.dtype) == torch.bfloat16,
        is_frozen=is_frozen,
        is_checkpointed=recipe.model.is_checkpointed,
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
