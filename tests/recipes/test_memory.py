"""A recipe's memory plan: what is listed for a stage, and that settings move it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lydian.models.adapters import AdapterSettings
from lydian.models.memory import peak_bytes
from lydian.models.parameters import planned_model
from lydian.recipes.load import load_recipe
from lydian.recipes.materials import engine_bytes
from lydian.recipes.memory import PLANNED_SHARE, StagePlan, memory_lines, stage_plan

RECIPE = """
name = "small"
[model]
source = "tiny"
[template]
kind = "plain"
[data.train]
generator = "arithmetic"
num = 8
split = "train"
[benchmark]
name = "b"
data = "train"
verifier = { name = "numeric" }
sampling = { temperature = 0.0, max_tokens = 64 }
[[stages]]
algorithm = "grpo"
data = "train"
verifier = { name = "numeric" }
sampling = { max_tokens = 96 }
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture
def recipe_of(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return lambda *overrides: load_recipe(str(path), overrides)


def plan(recipe) -> dict[str, int]:
    return {f"{h.of}: {h.what}": h.num_bytes for h in plan_of(recipe).held}


def plan_of(recipe, free: int = 1 << 29) -> StagePlan:
    (stage,) = recipe.stages
    base, trained = (planned_model("tiny", adapter) for adapter in (None, stage.adapter or recipe.model.adapter))
    return stage_plan(recipe, stage, base, trained, free=free)


def test_settings_move_what_they_should(recipe_of, monkeypatch):
    """The tiny model has 894,080 parameters. A KL penalty brings a reference, twice as many tokens of a pass twice the
    activations, an adapter of rank 16 2 · 163,840 moments, and more new tokens a larger cache: 128 rows of 256 + 96
    tokens, 2 · 4 · 128 numbers each."""
    base = plan(recipe_of())
    assert base["policy: weights"] == base["engine: weights"] == base["policy: gradients"] == 4 * 894_080
    assert base["policy: moments"] == 8 * 894_080
    assert base["engine: keys and values"] <= 128 * 352 * 2 * 4 * 128 * 4
    assert not any(name.startswith("reference") for name in base)
    kl = plan(recipe_of("stages.grpo.kl.place=loss", "stages.grpo.kl.coef=0.1"))
    assert kl["reference: trained weights"] == 4 * 894_080
    twice = plan(recipe_of("stages.grpo.batching.batch_tokens=4096"))
    assert twice["policy: activations of 4,096 tokens"] == 2 * base["policy: activations of 2,048 tokens"]
    assert plan(recipe_of("model.adapter.rank=16"))["policy: moments"] == 8 * 163_840
    other = plan(recipe_of("engine.dtype=bfloat16"))
    assert other.pop("sampler: weights") == 2 * 894_080
    assert other == base
    monkeypatch.setattr("lydian.models.load.is_bfloat16_fast", lambda: False)
    assert "sampler: weights" not in plan(recipe_of("engine.dtype=auto"))
    monkeypatch.setattr("lydian.models.load.is_bfloat16_fast", lambda: True)
    assert "sampler: weights" in plan(recipe_of("engine.dtype=auto"))


def test_the_engine_s_own_budget_comes_before_what_is_free(recipe_of, monkeypatch):
    """Of 1 GiB free and a budget of 1/1024 GiB, the second: fewer completions, a smaller cache; likewise half of what a
    stage may take, 2/1024 GiB, unless the engine has its own."""
    monkeypatch.setattr("lydian.recipes.memory.free_bytes", lambda device: 1 << 30)
    model = "model.memory_gib=0.001953125"
    assert engine_bytes(recipe_of(model)) == engine_bytes(recipe_of("engine.memory_gib=0.0009765625")) == 1 << 20
    assert engine_bytes(recipe_of(model, "engine.memory_gib=1.0")) == 1 << 30
    assert engine_bytes(recipe_of()) is None
    of_free, of_budget, of_model, of_both = (
        next(line.split()[:2] for line in memory_lines(recipe_of(*overrides)) if "keys and values" in line)
        for overrides in ((), ("engine.memory_gib=0.0009765625",), (model,), (model, "engine.memory_gib=1.0"))
    )
    assert of_model == of_budget and of_both == of_free
    assert of_free[1] == "MiB" and float(of_free[0]) > 10
    assert of_budget[1] == "KiB" or float(of_budget[0]) < 1


def test_check_lists_a_table_a_stage(recipe_of, monkeypatch):
    monkeypatch.setattr("lydian.recipes.memory.free_bytes", lambda device: 1 << 20)
    lines = memory_lines(recipe_of())
    assert lines[0].startswith("memory of grpo: ") and lines[0].endswith(
        "more than the limit of 870.4 KiB: lower stages.batching.batch_tokens or engine.memory_gib; 1.0 MiB free now"
    )
    assert any(line.split() == ["3.4", "MiB", "policy:", "weights", "always"] for line in lines)
    (line,) = memory_lines(recipe_of("model.source=a-lab/some-model"))
    assert "not here" in line


def test_teachers_and_reward_models_are_counted(recipe_of):
    """894,080 numbers of 4 bytes each: a teacher; a reward model, also where it is part of another verifier."""
    judge = '{name="reward_model", model="tiny"}'
    for verifier in (judge, f'{{name="weighted", weights={{r=1.0}}, parts={{r={judge}}}}}'):
        found = plan(recipe_of(f"stages.grpo.verifier={verifier}"))
        assert found["reward model: weights"] == 4 * 894_080
    found = plan(recipe_of("stages.0.algorithm=on_policy_distillation", "stages.0.teacher=tiny"))
    assert found["teacher: weights"] == 4 * 894_080
    assert "reward model: weights" not in found


def test_a_critic_under_an_adapter_shares_the_frozen_weights(recipe_of):
    """Rank 16 has 163,840 numbers; a critic that starts from a checkpoint trains all of that, 894,080."""
    settings = ["stages.0.algorithm=ppo", "model.adapter.rank=16"]
    assert plan(recipe_of(*settings))["critic: weights"] == 4 * 163_840
    assert plan(recipe_of(*settings, "stages.0.critic.start=tiny"))["critic: weights"] == 4 * 894_080


def test_the_plan_is_the_peak_of_its_parts(recipe_of):
    found = plan_of(recipe_of())
    assert found.is_kept and found.peak == sum(h.num_bytes for h in found.held)
    assert found.peak < found.most_held < found.peak / 0.8
    assert min(h.num_bytes for h in found.held) > 0
    assert found.num_recomputed == 0


def updates(found: StagePlan) -> int:
    return sum(h.num_bytes for h in found.held if h.during != "sampling")


def test_layers_are_recomputed_until_updates_fit(recipe_of):
    """As few as will do, of what is asked or of a share of what is free; all but the last if nothing will do; none
    with a prefix. The tiny model has 4 layers."""
    whole = updates(plan_of(recipe_of()))
    found = [plan_of(recipe_of(f"model.memory_gib={share * whole / 2**30}")) for share in (1.01, 0.99, 0.6, 0.01)]
    numbers = [one.num_recomputed for one in found]
    assert numbers[0] == 0 and numbers[1] == 1 < numbers[2] <= 3 == numbers[3]
    sizes = [updates(one) for one in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[2] <= 0.6 * whole and sizes[3] > 0.01 * whole
    assert all(("more than the limit" in one.summary) is (one.peak > one.limit) for one in found)
    assert found[3].peak > found[3].limit
    assert f"activations of 2,048 tokens, {numbers[2]} of 4 layers recomputed" in str(found[2].held)
    assert f"activations of {numbers[2]} layers are recomputed" in found[2].summary
    assert plan_of(recipe_of(), free=int(1.01 * whole / PLANNED_SHARE)).num_recomputed == 0
    assert plan_of(recipe_of(), free=int(0.99 * whole / PLANNED_SHARE)).num_recomputed > 0
    assert plan_of(recipe_of("model.memory_gib=0.001", "model.adapter.kind=prefix")).num_recomputed == 0


def test_freed_memory_is_kept_where_there_is_room(recipe_of):
    """Where updates and sampling together do not fit, the larger of the two is what counts, and memory goes back."""
    engine = "engine.memory_gib=0.25"
    whole = plan_of(recipe_of(engine)).peak
    roomy, tight = (plan_of(recipe_of(engine, f"model.memory_gib={share * whole / 2**30}")) for share in (1.01, 0.99))
    assert roomy.is_kept and not tight.is_kept
    assert roomy.num_recomputed == tight.num_recomputed == 0
    assert tight.peak == peak_bytes(tight.held) < roomy.peak
    assert (tight.most_held, tight.most_in_training) == (0, int(0.99 * whole))
    assert roomy.most_in_training == roomy.most_held
    assert plan_of(recipe_of()).most_held > roomy.most_held == int(1.01 * whole)


def test_a_stage_plans_the_adapter_that_it_goes_on_with(recipe_of):
    """Of two stages the second trains the first one's LoRA of rank 16: moments of 163,840 numbers for both, and the
    activations of layers whose own weights are frozen."""
    recipe = recipe_of()
    (stage,) = recipe.stages
    first = replace(stage, name="first", adapter=AdapterSettings(rank=16, alpha=32.0))
    lines = memory_lines(replace(recipe, stages=(first, replace(stage, start="first"))))
    assert sum(line.split()[:4] == ["1.2", "MiB", "policy:", "moments"] for line in lines) == 2
    activations = [line.split()[:2] for line in lines if "activations of 2,048 tokens" in line]
    (whole,) = (line.split()[:2] for line in memory_lines(recipe) if "activations of 2,048 tokens" in line)
    assert activations == [activations[0]] * 2 and float(activations[0][0]) < float(whole[0])
