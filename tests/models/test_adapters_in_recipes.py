"""Adapters in whole runs on random weights: what is said before training, what lies on disk after, and resuming."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from rich.console import Console
from transformers import AutoTokenizer

from lydian.cli.models import stage_model
from lydian.models.convert import write_full
from lydian.models.load import load_model
from lydian.recipes.check import check_recipe
from lydian.recipes.load import load_recipe
from lydian.recipes.run import run_recipe
from lydian.recipes.run_dir import read_json
from tests.recipes.killing import RECIPE, SFT

GRPO = """
[[stages]]
algorithm = "grpo"
data = "train"
self_test = false
rounds = 1
problems_per_round = 4
num_samples = 4
sampling = { temperature = 1.0, max_tokens = 8 }
optimiser = { learning_rate = 1e-2 }
"""
LORA = """adapter = { rank = 2, alpha = 2.0, targets = ["q_proj"] }
new_tokens = ["<think>"]"""
PREFIX = 'adapter = { kind = "prefix", prefix_tokens = 2 }'


def recipe_with(lines: str, stages: str, folder: Path) -> Path:
    path = folder / "recipe.toml"
    path.write_text((RECIPE + stages).replace('source = "MODEL"', f'source = "tiny-untrained"\n{lines}'))
    return path


def run(path: Path, out: Path, *, resume: bool = False) -> str:
    said = io.StringIO()
    run_recipe(load_recipe(str(path)), out, resume=resume, console=Console(file=said, width=200))
    return said.getvalue()


@pytest.mark.slow
def test_random_weights_with_an_adapter_and_a_new_token(tmp_path: Path) -> None:
    """The base has no place but in the run: it is written there, so that PEFT alone reads the stage's adapter.

    Beside the base's 320 d + 4 (4 d² + 3 · 384 d + 2 d) + d = 894,080 at d = 128, and the new row's 128 as they began,
    train q 128→128 in four layers at rank 2, 4 · 2 · 256 = 2048, and the row.
    """
    out = tmp_path / "run"
    said = run(recipe_with(LORA, SFT + GRPO, tmp_path), out)
    assert "model: trains 2,176 parameters beside 894,208 (0.243%): embed_tokens 128 of 41,088, q_proj 2,048" in said
    assert sorted(path.name for path in (out / "models").iterdir()) == ["00_base", "01_sft", "02_grpo"]
    last = load_model(out / "models" / "02_grpo", adapter="continue").model
    by_peft = AutoPeftModelForCausalLM.from_pretrained(out / "models" / "02_grpo").eval()
    tokens = AutoTokenizer.from_pretrained(out / "models" / "02_grpo", return_tensors="pt")
    ids = torch.tensor([tokens.encode("<think>12 + 3")])
    assert ids[0, 0] == 320
    with torch.no_grad():
        assert torch.equal(by_peft(ids).logits, last(ids).logits)
    assert write_full(stage_model(f"{out}:sft"), tmp_path / "full").gap < 1e-4


@pytest.mark.slow
def test_a_prefix_trains_samples_and_is_judged(tmp_path: Path) -> None:
    """What evaluates the base must not see the prefix: its row equals that of a run with (IA)³, which starts as it.

    Two keys and two values of 4 · 32 numbers in four layers: 2048.
    """
    out = tmp_path / "run"
    said = run(recipe_with(PREFIX, SFT + GRPO, tmp_path), out)
    assert "trains 2,048 parameters beside 894,080 (0.229%): prefix 2,048" in said
    rows = read_json(out / "summary.json")["stages"]
    assert [row["stage"] for row in rows] == ["base", "sft", "grpo"]
    assert run(tmp_path / "recipe.toml", out, resume=True)
    assert read_json(out / "summary.json")["stages"] == rows
    other = tmp_path / "other"
    run(recipe_with('adapter = { kind = "ia3" }', "", tmp_path), other)
    assert read_json(other / "summary.json")["stages"][0]["outcomes"] == rows[0]["outcomes"]


@pytest.mark.slow
def test_check_says_what_would_train_in_the_model_itself(tmp_path: Path) -> None:
    """By the config alone: the tiny model as bundled has the sizes of the random one. DoRA: 2048 + 4 · 128 lengths."""
    path = recipe_with('adapter = { kind = "dora", rank = 2, targets = ["q_proj"] }', SFT, tmp_path)
    path.write_text(path.read_text().replace('"tiny-untrained"', '"tiny"'))
    said = io.StringIO()
    assert check_recipe(load_recipe(str(path)), Console(file=said, width=200)) == []
    assert "model: trains 2,560 parameters beside 894,080 (0.286%): q_proj 2,560 of 65,536" in said.getvalue()
