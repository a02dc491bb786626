"""merge, unmerge and export on the tiny random model: from the command line to folders that transformers reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.cli.models import stage_model
from lydian.errors import InputError
from lydian.models.adapters import AdapterSettings
from lydian.models.fresh import tiny_untrained
from lydian.models.load import load_model
from lydian.models.save import save_model


def lydian(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a base, a stage of all weights and a stage with an adapter on it."""
    models = tmp_path_factory.mktemp("run") / "models"
    model, tokenizer = tiny_untrained(0)
    save_model(model, tokenizer, models / "00_base", merge=False)
    model.model.norm.weight.data *= 1.1
    save_model(model, tokenizer, models / "01_sft", merge=False)
    wrapped = load_model(models / "01_sft", adapter=AdapterSettings(rank=2)).model
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    save_model(wrapped, tokenizer, models / "02_grpo", merge=False)
    return models.parent


def weights(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return tensors


def test_merge_and_unmerge(run: Path, tmp_path: Path) -> None:
    adapter, base = run / "models" / "02_grpo", weights(run / "models" / "01_sft")
    result = lydian("merge", adapter, "--out", tmp_path / "full")
    assert result.exit_code == 0, result.output
    assert f"written to  {tmp_path / 'full'} (float32)" in result.output and "allowed 0.001" in result.output
    merged = weights(tmp_path / "full")
    assert any(not torch.allclose(merged[name], base[name], atol=1e-3) for name in base)
    result = lydian("unmerge", tmp_path / "full", "--adapter", adapter, "--out", tmp_path / "back")
    assert result.exit_code == 0, result.output
    assert "the base that the adapter names" in result.output
    for name, tensor in weights(tmp_path / "back").items():
        torch.testing.assert_close(tensor, base[name], atol=1e-6, rtol=0)


def test_merge_takes_an_adapter_only(run: Path, tmp_path: Path) -> None:
    result = lydian("merge", run / "models" / "01_sft", "--out", tmp_path / "full")
    assert result.exit_code == 2 and "no adapter" in result.output
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("stage", ["", ":grpo", ":sft", ":base"])
def test_export_of_a_stage_is_the_model_that_it_trained(run: Path, stage: str, tmp_path: Path) -> None:
    result = lydian("export", f"{run}{stage}", "--out", tmp_path / "full", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    expected = load_model(stage_model(f"{run}{stage}")).model.state_dict()
    found = weights(tmp_path / "full")
    assert all(torch.equal(found[name].float(), tensor.to(torch.bfloat16).float()) for name, tensor in expected.items())


def test_stages_are_found_by_name(run: Path, tmp_path: Path) -> None:
    assert stage_model(str(run)).name == stage_model(f"{run}:grpo").name == "02_grpo"
    assert stage_model(f"{run}:base").name == "00_base"
    with pytest.raises(InputError, match="one of the stages base, sft, grpo"):
        stage_model(f"{run}:dpo")
    with pytest.raises(InputError, match="no run with a trained model"):
        stage_model(str(tmp_path))


def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    result = lydian("export", run, "--out", tmp_path / "full")
    assert result.exit_code == 1 and "Choose another --out" in result.output
