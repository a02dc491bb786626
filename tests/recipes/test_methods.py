"""Every kind of stage from one recipe: what each trains and leaves behind, and that a kill in any changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from lydian.models.heads import Head
from lydian.recipes.run_dir import read_json
from tests.recipes.killing import RECIPE, SFT, Kill, run, run_until_killed
from tests.recipes.test_run import assert_same_run, rows_of

SETS = """
[data.thumbs]
kind = "feedback"
generator = "arithmetic_feedback"
num = 16
min_level = 1
max_level = 2

[data.other_pairs]
kind = "preferences"
generator = "arithmetic_preferences"
split = "heldout"
num = 8
min_level = 1
max_level = 2
"""

OFTEN = "checkpoint_steps = 1\noptimiser = { learning_rate = 1e-3 }\n"
SAMPLED = "self_test = false\nsampling = { temperature = 1.0, max_tokens = 16 }\n" + OFTEN

METHODS = f"""
[[stages]]
algorithm = "reward_model"
start = "sft"
data = "preferences"
heldout = "other_pairs"
batch_size = 4
{OFTEN}
[[stages]]
algorithm = "best_of_n"
start = "sft"
data = "train"
num_samples = 3
verifier = {{ name = "reward_model", model = "stage:reward_model" }}
sampling = {{ temperature = 1.0, max_tokens = 16 }}

[[stages]]
algorithm = "ppo"
start = "sft"
data = "train"
rounds = 2
epochs = 2
problems_per_round = 4
num_samples = 2
batch_size = 4
verifier = {{ name = "reward_model", model = "stage:reward_model" }}
kl = {{ place = "reward", coef = 0.05 }}
critic = {{ start = "stage:reward_model", warmup_rounds = 1 }}
ptx = {{ coef = 0.1, data = "demonstrations", batch_size = 2 }}
{SAMPLED}
[[stages]]
algorithm = "kto"
start = "sft"
data = "thumbs"
batch_size = 4
{OFTEN}
[[stages]]
name = "dpo_cached"
algorithm = "dpo"
start = "sft"
data = "preferences"
reference_logprobs = "cached"
batch_size = 4
{OFTEN}
[[stages]]
algorithm = "online_dpo"
start = "sft"
data = "train"
rounds = 2
problems_per_round = 4
num_samples = 4
reference = "round"
{SAMPLED}
[[stages]]
algorithm = "star"
start = "sft"
data = "train"
rounds = 2
problems_per_round = 4
num_samples = 2
batch_size = 2
{SAMPLED}
[[stages]]
algorithm = "distil"
start = "base"
data = "demonstrations"
teacher = "stage:sft"
batch_size = 4
{OFTEN}
[[stages]]
algorithm = "gkd"
start = "base"
data = "train"
given_data = "demonstrations"
teacher = "stage:sft"
rounds = 2
problems_per_round = 4
num_samples = 2
batch_size = 8
{SAMPLED}
[[stages]]
name = "lora"
algorithm = "dpo"
start = "sft"
data = "preferences"
adapter = {{ rank = 2 }}
batch_size = 4
{OFTEN}"""
TRAINED = ("reward_model", "ppo", "kto", "dpo_cached", "online_dpo", "star", "distil", "gkd", "lora")


@pytest.fixture(scope="module")
def text(untrained: Path) -> str:
    return (RECIPE + SETS + SFT + METHODS).replace("MODEL", str(untrained))


@pytest.fixture(scope="module")
def whole(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("methods") / "run"
    run(text, out)
    return out


def test_every_stage_trains_and_is_judged(whole: Path):
    """Each method moved what it trains, and has its row; the base and best-of-N train nothing."""
    rows = {row["stage"]: row for row in read_json(whole / "summary.json")["stages"]}
    assert list(rows) == ["base", "sft", "reward_model", "best_of_n", *TRAINED[1:]]
    stages = {row["stage"] for row in rows_of(whole / "metrics.jsonl")}
    assert stages == {"sft", *TRAINED}
    for stage in TRAINED[:-1]:
        (folder,) = (whole / "models").glob(f"*_{stage}")
        start = "base" if rows[stage]["start"] == "base" else "01_sft"
        if start != "base":
            ours, theirs = (load_file(place / "model.safetensors") for place in (folder, whole / "models" / start))
            assert any((ours[name] != theirs[name]).any() for name in theirs), stage


def test_a_reward_model_is_judged_on_pairs_it_never_saw(whole: Path):
    """8 held-out pairs; its head lies beside the model, with the template it must be asked in."""
    rows = {row["stage"]: row for row in read_json(whole / "summary.json")["stages"]}
    measured = rows["reward_model"]["measured"]
    assert measured["kind"] == "reward_model" and measured["accuracy"]["num"] == 8
    head = Head.load(whole / "models" / "02_reward_model")
    assert head.output == "score" and head.facts["template"]["kind"] == "plain"


def test_a_stage_with_an_adapter_leaves_the_adapter_alone(whole: Path):
    (folder,) = (whole / "models").glob("*_lora")
    assert (folder / "adapter_config.json").is_file() and not (folder / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", TRAINED)
def test_a_kill_in_any_stage_changes_nothing(text: str, whole: Path, tmp_path: Path, stage: str):
    """Killed at its second step, or its first where it has no second, then resumed: bitwise the same run."""
    out = tmp_path / "run"
    steps = sum(row["stage"] == stage for row in rows_of(whole / "metrics.jsonl"))
    owner = "lydian.recipes.run_dir:RunDir"
    run_until_killed(text, out, Kill(owner=owner, name="append_metrics", matching={"stage": stage}, nth=min(2, steps)))
    run(text, out, resume=True)
    assert_same_run(out, whole)
