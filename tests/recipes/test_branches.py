"""Stages that start from any earlier one, benchmarks on the side, and best-of-N: the comparison of many methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lydian.errors import RecipeError
from lydian.evaluation.records import EvalReport
from lydian.recipes.load import load_recipe
from lydian.recipes.run_dir import read_json
from tests.recipes.killing import RECIPE, SFT, Kill, run, run_until_killed

BRANCHES = """
[side_benchmarks.letters]
data = "train"
verifier = { name = "pattern", pattern = "[a-z]" }
sampling = { temperature = 1.0, max_tokens = 8 }

[[stages]]
name = "still"
algorithm = "dpo"
data = "preferences"
optimiser = { learning_rate = 0.0, weight_decay = 0.0 }

[[stages]]
name = "from_base"
start = "base"
algorithm = "dpo"
data = "preferences"
optimiser = { learning_rate = 0.0, weight_decay = 0.0 }

[[stages]]
name = "moved"
start = "sft"
algorithm = "dpo"
data = "preferences"
batch_size = 4
epochs = 2
checkpoint_steps = 1
optimiser = { learning_rate = 1e-3 }

[[stages]]
name = "best_of_n"
start = "sft"
algorithm = "best_of_n"
data = "train"
num_samples = 6
sampling = { temperature = 1.0, max_tokens = 16, seed = 5 }
"""


@pytest.fixture(scope="module")
def text(untrained: Path) -> str:
    return (RECIPE + SFT + BRANCHES).replace("MODEL", str(untrained))


@pytest.fixture(scope="module")
def whole(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("branches") / "run"
    run(text, out)
    return out


def weights(out: Path, stage: str) -> dict[str, torch.Tensor]:
    (folder,) = (out / "models").glob(f"*_{stage}")
    return load_file(folder / "model.safetensors")


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows(out: Path) -> dict[str, Any]:
    return {row["stage"]: row for row in read_json(out / "summary.json")["stages"]}


def test_a_stage_starts_from_the_weights_it_names(whole: Path, untrained: Path):
    """Without a learning rate a stage ends where it started: `still` at sft's weights, those of the stage before it,
    `from_base` at the untrained model's. `moved` starts from sft and moves."""
    assert is_equal(weights(whole, "still"), weights(whole, "sft"))
    assert is_equal(weights(whole, "from_base"), load_file(untrained / "model.safetensors"))
    assert not is_equal(weights(whole, "moved"), weights(whole, "sft"))


def test_what_another_branch_did_leaves_no_trace(whole: Path, text: str, tmp_path: Path):
    """`moved` alone after sft, without the branches between, ends bitwise the same."""
    cut = text[: text.index('[[stages]]\nname = "still"')] + text[text.index('[[stages]]\nname = "moved"') :]
    out = tmp_path / "run"
    run(cut, out)
    assert is_equal(weights(out, "moved"), weights(whole, "moved"))


def test_each_row_is_compared_with_where_it_started(whole: Path):
    table = rows(whole)
    assert {name: row["start"] for name, row in table.items()} == {
        "base": None,
        "sft": "base",
        "still": "sft",
        "from_base": "base",
        "moved": "sft",
        "best_of_n": "sft",
    }
    for name in ("still", "moved", "best_of_n"):
        change = table[name]["accuracy"]["value"] - table["sft"]["accuracy"]["value"]
        assert table[name]["versus_previous"]["value"] == pytest.approx(change)
    assert table["from_base"]["versus_previous"]["value"] == 0 == table["still"]["versus_previous"]["value"]


def test_a_side_benchmark_is_compared_with_the_base(whole: Path):
    """Every policy has a row on it, in files of its own, and its difference to the base model."""
    table = rows(whole)
    assert all(row["side"]["letters"]["accuracy"]["num"] == 16 for row in table.values())
    assert table["base"]["side"]["letters"]["versus_base"] is None
    base, moved = (table[name]["side"]["letters"] for name in ("base", "moved"))
    assert moved["versus_base"]["value"] == pytest.approx(moved["accuracy"]["value"] - base["accuracy"]["value"])
    assert (whole / "evaluations" / "side" / "letters" / "04_moved.json").is_file()
    assert table["from_base"]["side"]["letters"]["versus_base"]["value"] == 0


def test_best_of_n_answers_with_the_best_of_its_samples(whole: Path):
    """Chosen by the benchmark's own verifier it answers what any of six samples answers, and trains nothing: with four
    replies in ten having a digit, about 1 − 0.6⁶ = 95 % have one."""
    row = rows(whole)["best_of_n"]
    assert row["accuracy"]["value"] > rows(whole)["sft"]["accuracy"]["value"]
    assert not list((whole / "models").glob("*_best_of_n"))
    report = EvalReport.load(whole / "evaluations" / "05_best_of_n")
    assert report.weights_digest == EvalReport.load(whole / "evaluations" / "01_sft").weights_digest


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        Kill(owner="lydian.recipes.run_dir:RunDir", name="append_metrics", matching={"stage": "moved"}, nth=3),
        Kill(owner="lydian.recipes.run", name="build_policy", nth=3),
        Kill(owner="lydian.rollout.best_of", name="verify_all"),
    ],
    ids=["in a branch", "while a branch takes up its weights", "in best-of-n"],
)
def test_a_killed_branch_ends_bitwise_the_same(text: str, whole: Path, tmp_path: Path, kill: Kill):
    out = tmp_path / "run"
    run_until_killed(text, out, kill)
    run(text, out, resume=True)
    for stage in ("sft", "still", "from_base", "moved"):
        assert is_equal(weights(out, stage), weights(whole, stage)), stage
    lines = [[json.loads(line)["metrics"] for line in (p / "metrics.jsonl").open()] for p in (out, whole)]
    assert lines[0] == lines[1]
    assert {n: r["accuracy"] for n, r in rows(out).items()} == {n: r["accuracy"] for n, r in rows(whole).items()}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ('start = "dpo"', "stages[0].start"),
        ('heldout = "preferences"', "stages[0].heldout"),
        ('teacher = "tiny"', "stages[0].teacher"),
        ("critic = {}", "stages[0].critic"),
        ('verifier = { name = "weighted", parts = { a = { name = "pattern", pattern = "stage:x" } } }', "verifier"),
    ],
    ids=[
        "a start that is no stage before",
        "held-out data for a policy",
        "an idle teacher",
        "an idle critic",
        "a model of no stage before",
    ],
)
def test_what_does_not_fit_together_is_refused(given: str, named: str, tmp_path: Path):
    stage = '[[stages]]\nalgorithm = "grpo"\ndata = "train"\nsampling = { temperature = 1.0 }\n'
    path = tmp_path / "wrong.toml"
    path.write_text(RECIPE.replace("MODEL", "tiny") + stage + given + "\n")
    with pytest.raises(RecipeError, match=named.replace("[", r"\[").replace("]", r"\]")):
        load_recipe(path)
