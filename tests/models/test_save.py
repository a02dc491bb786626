"""What save_model writes is loaded here by transformers and PEFT alone."""

import json
import os

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from lydian.errors import ModelError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.load import load_model
from lydian.models.save import check_adapter_base, place_base, save_model, staged_folder

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": [3, 5],
}
TOKENS = torch.arange(20).reshape(2, 10)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokenizer():
    backend = Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w3", unk_token="w0")
    fast.chat_template = TEMPLATE
    return fast


def llama():
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)).eval()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=[3, 5])).eval()


FAMILIES = pytest.mark.parametrize("make", [llama, qwen2, gpt2])
KINDS = {
    "lora": AdapterSettings(rank=4),
    "rslora": AdapterSettings(rank=4, alpha=8.0, rslora=True),
    "dora": AdapterSettings(kind="dora", rank=4),
    "ia3": AdapterSettings(kind="ia3"),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def is_tied(model):
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def adapted(base_folder, kind="lora", dtype="auto"):
    """A model loaded from a folder, with an adapter that changes it."""
    wrapped = load_model(base_folder, adapter=KINDS[kind], dtype=dtype).model
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return wrapped


def tokenizer_for(make):
    """transformers reads a Qwen2 checkpoint's tokenizer as a Qwen2Tokenizer only."""
    if make is not qwen2:
        return tokenizer()
    fast = Qwen2Tokenizer(vocab={letter: i for i, letter in enumerate("abcedfghij")}, merges=[], eos_token="e")
    fast.chat_template = TEMPLATE
    return fast


def check_surroundings(folder):
    reloaded = AutoTokenizer.from_pretrained(folder)
    assert reloaded("hj" if isinstance(reloaded, Qwen2Tokenizer) else "w7 w9").input_ids == [7, 9]
    assert reloaded.chat_template == TEMPLATE
    assert reloaded.eos_token_id == 3
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [3, 5]


@FAMILIES
@pytest.mark.parametrize("merge", [False, True])
def test_a_model_without_adapter_round_trips_through_transformers(make, merge, tmp_path):
    model = make()
    save_model(model, tokenizer_for(make), tmp_path / "saved", merge=merge)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(reloaded.eval()), logits(model))
    assert is_tied(reloaded) == is_tied(model)
    check_surroundings(tmp_path / "saved")


@EACH
@FAMILIES
def test_an_adapter_round_trips_through_peft(make, kind, tmp_path):
    save_model(make(), tokenizer_for(make), tmp_path / "base", merge=False)
    wrapped = adapted(tmp_path / "base", kind)
    save_model(wrapped, tokenizer_for(make), tmp_path / "adapter", merge=False)
    assert not list((tmp_path / "adapter").glob("model*"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert not torch.allclose(logits(base.eval()), logits(wrapped), atol=1e-2)
    reloaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert torch.equal(logits(reloaded.eval()), logits(wrapped))
    by_its_base_name = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(logits(by_its_base_name.eval()), logits(wrapped))
    check_surroundings(tmp_path / "adapter")


@EACH
@FAMILIES
def test_a_merged_checkpoint_round_trips_through_transformers_and_leaves_the_live_model_alone(make, kind, tmp_path):
    save_model(make(), tokenizer_for(make), tmp_path / "base", merge=False)
    wrapped = adapted(tmp_path / "base", kind)
    before, state = logits(wrapped), {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    save_model(wrapped, tokenizer_for(make), tmp_path / "merged", merge=True)
    assert torch.equal(logits(wrapped), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in wrapped.state_dict().items())
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(reloaded.eval()), before, atol=1e-5, rtol=1e-5)
    assert is_tied(reloaded) == is_tied(wrapped.get_base_model())
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    check_surroundings(tmp_path / "merged")


@EACH
def test_a_bfloat16_model_is_merged_back_to_bfloat16(kind, tmp_path):
    """Two ways of rounding to 8 bits, of logits up to 3: 4 · 2^-8 · 3 ≈ 0.05, and the adapter moves them by more."""
    torch.manual_seed(0)
    save_model(llama().to(torch.bfloat16), tokenizer(), tmp_path / "base", merge=False)
    model = adapted(tmp_path / "base", kind, dtype="bfloat16")
    save_model(model, tokenizer(), tmp_path / "merged", merge=True)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").eval()
    assert {parameter.dtype for parameter in reloaded.parameters()} == {torch.bfloat16}
    gap = (logits(reloaded) - logits(model)).abs().max().item()
    with model.disable_adapter():
        change = (logits(reloaded) - logits(model)).abs().max().item()
    assert gap < 0.05 and gap < change / 4, (gap, change)


def test_an_adapter_on_a_base_trained_in_memory_is_refused(tmp_path):
    """Saved alone it would later be put onto the weights on disk, which are others."""
    save_model(llama(), tokenizer(), tmp_path / "base", merge=False)
    wrapped = adapted(tmp_path / "base")
    check_adapter_base(wrapped)
    wrapped.get_base_model().model.layers[1].mlp.up_proj.base_layer.weight.data[3, 4] += 0.001
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight differs.*merge=True"):
        save_model(wrapped, tokenizer(), tmp_path / "adapter", merge=False)
    assert not (tmp_path / "adapter").exists()
    save_model(wrapped, tokenizer(), tmp_path / "merged", merge=True)


def test_an_adapter_on_a_base_without_name_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no name"):
        save_model(add_adapter(llama(), AdapterSettings()), tokenizer(), tmp_path / "adapter", merge=False)


@EACH
def test_unless_its_base_is_given_a_place(kind, tmp_path):
    """The base as it was before any training; written once, and then what the adapter is put on by PEFT alone."""
    model = add_adapter(llama(), KINDS[kind])
    fresh = logits(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    place_base(model, tokenizer(), tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    torch.testing.assert_close(logits(base), fresh, atol=1e-6 if kind == "dora" else 0, rtol=0)
    written = (tmp_path / "base" / "model.safetensors").stat().st_mtime_ns
    place_base(model, tokenizer(), tmp_path / "base")
    place_base(add_adapter(llama(), KINDS[kind]), tokenizer(), tmp_path / "base")
    assert (tmp_path / "base" / "model.safetensors").stat().st_mtime_ns == written
    save_model(model, tokenizer(), tmp_path / "adapter", merge=False)
    reloaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(logits(reloaded), logits(model))


def test_a_base_that_lies_on_disk_stays_where_it_is(tmp_path):
    save_model(llama(), tokenizer(), tmp_path / "base", merge=False)
    place_base(adapted(tmp_path / "base"), tokenizer(), tmp_path / "other")
    place_base(llama(), tokenizer(), tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["base"]


def test_a_tokenizer_that_would_be_read_back_as_another_is_refused(tmp_path):
    """A word-level tokenizer in a Qwen2 checkpoint comes back as a Qwen2Tokenizer, which splits differently."""
    with pytest.raises(ModelError, match="Qwen2Tokenizer with other tokens"):
        save_model(qwen2(), tokenizer(), tmp_path / "saved", merge=False)
    assert not os.listdir(tmp_path)


def test_saving_again_replaces_the_whole_folder(tmp_path):
    save_model(llama(), tokenizer(), tmp_path / "saved", merge=False)
    (tmp_path / "saved" / "stale.txt").write_text("from before")
    model = gpt2()
    save_model(model, tokenizer(), tmp_path / "saved", merge=False)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()), logits(model))
    assert not (tmp_path / "saved" / "stale.txt").exists()
    assert os.listdir(tmp_path) == ["saved"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_folder_and_nothing_else(error, tmp_path, monkeypatch):
    model = llama()
    save_model(model, tokenizer(), tmp_path / "saved", merge=False)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)  # after the weights are written
    with pytest.raises(ModelError if isinstance(error, OSError) else KeyboardInterrupt):
        save_model(qwen2(), tokenizer(), tmp_path / "saved", merge=False)
    assert os.listdir(tmp_path) == ["saved"]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()), logits(model))


def test_a_failed_move_puts_the_old_folder_back(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "old.txt").write_text("old")
    with pytest.raises(ModelError), staged_folder(tmp_path / "saved") as staging:
        staging.rmdir()  # the move will fail
    assert (tmp_path / "saved" / "old.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["saved"]
