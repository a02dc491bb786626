"""From adapter to full checkpoint and back: what transformers reads alone, to the stated precision, or nothing."""

import json
import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from lydian.errors import ModelError
from lydian.models import convert
from lydian.models.adapters import AdapterSettings
from lydian.models.convert import ROUNDINGS, TOLERANCE, probe_logprobs, stored_dtype, unmerge, write_full
from lydian.models.fresh import tiny_untrained
from lydian.models.heads import Head
from lydian.models.load import load_model
from lydian.models.save import save_model
from tests.models.adapted import KINDS, trained

EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def folders(tmp_path):
    """A base of 0.9 million random weights in a number format, and an adapter of a kind on it: a function of both."""

    def make(kind="lora", dtype=torch.float32, new_tokens=()):
        model, tokenizer = tiny_untrained(0)
        save_model(model.to(dtype), tokenizer, tmp_path / "base", merge=False)
        torch.manual_seed(0)
        loaded = load_model(tmp_path / "base", adapter=KINDS.get(kind), new_tokens=new_tokens)
        save_model(trained(loaded.model), loaded.tokenizer, tmp_path / "adapter", merge=False)
        return tmp_path / "base", tmp_path / "adapter", loaded

    return make


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_checkpoint_gives_what_base_and_adapter_gave(folders, kind, dtype, tmp_path):
    """In fp32 to 1e-3 nats, whatever it is stored in; what rounding to bf16 costs is reported as it is on disk."""
    _, adapter, live = folders(kind, dtype)
    written = write_full(adapter, tmp_path / "full")
    assert written.dtype is dtype and 0 < written.gap <= written.tolerance == TOLERANCE
    full = AutoModelForCausalLM.from_pretrained(tmp_path / "full", dtype="auto").eval()
    assert {p.dtype for p in full.parameters()} == {dtype}
    gap = (probe_logprobs(full.float(), live.tokenizer) - probe_logprobs(live.model, live.tokenizer)).abs().max().item()
    assert gap == pytest.approx(written.rounded, rel=1e-3, abs=1e-6)
    assert (gap < 1e-3) == (dtype is torch.float32)
    assert not (tmp_path / "full" / "adapter_config.json").exists()


def test_the_format_can_be_chosen(folders, tmp_path):
    _, adapter, _ = folders("lora", torch.bfloat16)
    assert write_full(adapter, tmp_path / "full", dtype="float32").dtype is torch.float32
    assert stored_dtype(tmp_path / "full") is torch.float32


def test_a_model_without_adapter_is_written_as_it_is(folders, tmp_path):
    base, _, _ = folders()
    written = write_full(base, tmp_path / "copy")
    assert written.gap == written.rounded == 0.0
    ours, theirs = (load_model(place).model.state_dict() for place in (base, tmp_path / "copy"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_head_goes_along(folders, tmp_path):
    base, _, _ = folders()
    Head("score", 128).save(base)
    write_full(base, tmp_path / "copy")
    assert Head.load(tmp_path / "copy").output == "score"


@pytest.mark.parametrize("kind", ["lora", "rslora", "ia3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_base_there", [True, False])
def test_the_base_comes_back(folders, kind, dtype, is_base_there, tmp_path):
    base, adapter, _ = folders(kind, dtype)
    write_full(adapter, tmp_path / "full")
    expected = load_model(base).model.state_dict()
    if not is_base_there:
        base.rename(tmp_path / "moved")
    written = unmerge(tmp_path / "full", adapter, tmp_path / "back")
    assert written.tolerance == ROUNDINGS * torch.finfo(dtype).eps
    assert ("adapter names" in written.against) == is_base_there
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto")
    assert back.dtype is dtype and back.lm_head.weight is back.model.embed_tokens.weight
    merged = load_model(tmp_path / "full").model.state_dict()
    for name, tensor in back.float().state_dict().items():
        largest = max(expected[name].abs().max().item(), merged[name].abs().max().item())
        torch.testing.assert_close(tensor, expected[name], atol=1.5 * written.tolerance * largest, rtol=0)


def test_another_adapter_is_found_out(folders, tmp_path):
    """Taken out of a checkpoint that it is not in, it leaves a base that differs from the one it names."""
    base, adapter, _ = folders()
    with pytest.raises(ModelError, match=r"differ.*the base that the adapter names"):
        unmerge(base, adapter, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_dora_and_trained_rows_cannot_be_taken_out(folders, tmp_path):
    for kind, new_tokens in (("dora", ()), ("lora", ("<think>",))):
        _, adapter, _ = folders(kind, new_tokens=new_tokens)
        full = tmp_path / f"full_{kind}"
        write_full(adapter, full)
        with pytest.raises(ModelError, match="base that the adapter names"):
            unmerge(full, adapter, tmp_path / "back")


def test_a_wrong_merge_is_not_written(folders, tmp_path, monkeypatch):
    _, adapter, _ = folders("lora", torch.bfloat16)  # in whose rounding it must not hide
    right = convert.load_model

    def slightly_wrong(source, adapter=None):
        loaded = right(source, adapter=adapter)
        if adapter is None:
            loaded.model.model.norm.weight.data *= 1.01
        return loaded

    monkeypatch.setattr(convert, "load_model", slightly_wrong)
    with pytest.raises(ModelError, match=r"differ by .*base and adapter side by side.*at most 0\.001"):
        write_full(adapter, tmp_path / "full")
    assert sorted(os.listdir(tmp_path)) == ["adapter", "base"]


def test_wrong_weights_are_not_written(folders, tmp_path, monkeypatch):
    _, adapter, _ = folders()
    right = convert.read_folder

    def slightly_wrong(folder):
        model = right(folder)
        model.model.norm.weight.data *= 1.01
        return model

    monkeypatch.setattr(convert, "read_folder", slightly_wrong)
    with pytest.raises(ModelError, match=r"differ by .*at most 0\.001"):
        write_full(adapter, tmp_path / "full")
    assert sorted(os.listdir(tmp_path)) == ["adapter", "base"]


def test_what_is_there_is_not_overwritten(folders, tmp_path):
    _, adapter, _ = folders()
    for write in (lambda: write_full(adapter, tmp_path / "base"), lambda: unmerge(adapter, adapter, tmp_path / "base")):
        with pytest.raises(ModelError, match="another --out"):
            write()


def test_a_prefix_stays_an_adapter(folders, tmp_path):
    base, _, _ = folders()
    loaded = load_model(base, adapter=AdapterSettings(kind="prefix"))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "prefix", merge=False)
    with pytest.raises(ModelError, match="a prefix"):
        write_full(tmp_path / "prefix", tmp_path / "full")


def test_stored_formats(tmp_path):
    assert stored_dtype(tmp_path / "x.gguf") is torch.float32
    for name, expected in (("bfloat16", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32)):
        (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": name}))
        assert stored_dtype(tmp_path) is expected
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float8_e4m3fn"}))
    with pytest.raises(ModelError, match="--dtype float32"):
        stored_dtype(tmp_path)
