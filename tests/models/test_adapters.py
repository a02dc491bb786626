"""LoRA on tiny random models; merged weights against the adapted forward pass."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from lydian.errors import ModelError, RecipeError
from lydian.models.adapters import AdapterSettings, add_adapter, merged_tensors, num_trainable

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOKENS = torch.arange(20).reshape(2, 10)


def llama(tied=True):
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=tied)).eval()


def qwen2():  # biases on q, k and v
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False)).eval()


def gpt2():  # Conv1D: weights stored [inputs, outputs]
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)).eval()


FAMILIES = pytest.mark.parametrize("make", [llama, qwen2, gpt2])


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def train_a_little(model):
    """Give B values, as training would: without them an adapter changes nothing and no test could fail."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)


@FAMILIES
def test_a_fresh_adapter_changes_nothing_and_freezes_the_base(make):
    model = make()
    before = logits(model)
    wrapped = add_adapter(model, AdapterSettings(rank=4))
    assert torch.equal(logits(wrapped), before)
    trainable = {name for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert trainable and all(".lora_" in name for name in trainable)
    assert not wrapped.training


def test_num_trainable_by_hand():
    """A layer has q 32→32, k 32→16, v 32→16, o 32→32, gate 32→48, up 32→48, down 48→32.

    A LoRA on i→o has r (i + o) parameters: 2 (64 + 48 + 48 + 64 + 80 + 80 + 80) = 928 at rank 2, twice for two layers.
    The model itself: embedding 64 · 32 = 2048 (tied, counted once); a layer 1024 + 512 + 512 + 1024 + 3 · 1536 = 7680
    and two norms of 32; a last norm of 32: 2048 + 2 (7680 + 64) + 32 = 17568.
    """
    model = llama()
    assert num_trainable(model) == 17568
    assert num_trainable(add_adapter(model, AdapterSettings(rank=2))) == 2 * 928


def test_targets_by_name():
    """q and v of one layer at rank 2: 2 (64 + 48) = 224; two layers."""
    assert num_trainable(add_adapter(llama(), AdapterSettings(rank=2, targets=("q_proj", "v_proj")))) == 448


def test_a_target_that_matches_nothing_is_an_error_although_others_match():
    with pytest.raises(ModelError, match=r"'w_proj'.*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"):
        add_adapter(llama(), AdapterSettings(targets=("q_proj", "w_proj")))


def test_the_output_matrix_is_no_target():
    with pytest.raises(ModelError, match="'lm_head'"):
        add_adapter(llama(tied=False), AdapterSettings(targets=("lm_head",)))


def test_a_second_adapter_is_refused():
    wrapped = add_adapter(llama(), AdapterSettings())
    with pytest.raises(ModelError, match="with an adapter"):
        add_adapter(wrapped, AdapterSettings())


@pytest.mark.parametrize("rslora", [False, True])
def test_scale(rslora):
    """W' - W = s B A. With rank 4, alpha 8: s = 8/4 = 2, or 8/√4 = 4 with rslora."""
    wrapped = add_adapter(llama(), AdapterSettings(rank=4, alpha=8.0, targets=("q_proj",), rslora=rslora))
    train_a_little(wrapped)
    layer = wrapped.get_base_model().model.layers[1].self_attn.q_proj
    change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = merged_tensors(wrapped)["model.layers.1.self_attn.q_proj.weight"]
    torch.testing.assert_close(merged - layer.base_layer.weight, (4 if rslora else 2) * change, atol=1e-6, rtol=1e-5)


@FAMILIES
def test_merged_tensors_in_a_plain_model_give_the_adapted_logits(make):
    wrapped = add_adapter(make(), AdapterSettings(rank=4))
    train_a_little(wrapped)
    tensors = merged_tensors(wrapped)
    plain = make()
    assert not torch.allclose(logits(plain), logits(wrapped), atol=1e-2)
    result = plain.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys in ([], ["lm_head.weight"])  # absent only where tied to the embedding
    torch.testing.assert_close(logits(plain), logits(wrapped), atol=1e-5, rtol=1e-5)


@FAMILIES
def test_merging_leaves_the_model_alone_and_copies_only_adapted_matrices(make):
    targets = ("c_attn",) if make is gpt2 else ("q_proj",)
    wrapped = add_adapter(make(), AdapterSettings(rank=4, targets=targets))
    train_a_little(wrapped)
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    tensors = merged_tensors(wrapped)
    for name, tensor in wrapped.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    live = {parameter.data_ptr() for parameter in wrapped.parameters()}
    copies = {name for name, tensor in tensors.items() if tensor.data_ptr() not in live}
    assert copies == {name for name in tensors if name.endswith(f"{targets[0]}.weight")} and len(copies) == 2
    assert not any(tensor.requires_grad for tensor in tensors.values())


@FAMILIES
def test_without_adapter_the_tensors_are_the_state_dict_with_ties_once(make):
    model = make()
    names = set(model.state_dict())
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tensors = merged_tensors(model)
    assert set(tensors) == (names - {"lm_head.weight"} if tied else names)
    assert all(tensor.data_ptr() == model.state_dict()[name].data_ptr() for name, tensor in tensors.items())


def test_bfloat16_bases_are_merged_in_float32():
    wrapped = add_adapter(llama().to(torch.bfloat16), AdapterSettings(rank=4, targets=("q_proj",)))
    train_a_little(wrapped)
    merged = merged_tensors(wrapped)["model.layers.0.self_attn.q_proj.weight"]
    assert merged.dtype is torch.float32
    assert not torch.equal(merged, merged.to(torch.bfloat16).float())  # not rounded on the way


def test_inside_disable_adapter_the_tensors_are_the_base():
    wrapped = add_adapter(llama(), AdapterSettings(rank=4))
    train_a_little(wrapped)
    with wrapped.disable_adapter():
        tensors = merged_tensors(wrapped)
    layer = wrapped.get_base_model().model.layers[0].self_attn.q_proj
    assert torch.equal(tensors["model.layers.0.self_attn.q_proj.weight"], layer.base_layer.weight)


@pytest.mark.parametrize("extra", [{"use_dora": True}, {"modules_to_save": ["norm"]}, {"bias": "lora_only"}])
def test_other_kinds_of_adapter_are_refused_rather_than_merged_wrongly(extra):
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(llama(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **extra))
    with pytest.raises(ModelError, match="LoRA"):
        merged_tensors(wrapped)


@pytest.mark.parametrize(
    "settings", [{"rank": 0}, {"alpha": 0.0}, {"alpha": float("nan")}, {"targets": ()}, {"targets": ("",)}]
)
def test_settings_out_of_range(settings):
    with pytest.raises(RecipeError, match=f"adapter.{next(iter(settings))}"):
        AdapterSettings(**settings)
