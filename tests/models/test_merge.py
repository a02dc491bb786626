"""Merged weights against the adapted forward pass, for every kind; and merging undone."""

import pytest
import torch
from peft import LoHaConfig, LoraConfig, get_peft_model

from lydian.errors import ModelError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.merge import base_tensors, check_mergeable, merged_tensors, unmerged_tensors
from tests.models.adapted import FAMILIES, KINDS, adapted, logprobs, plain, trained

EACH = pytest.mark.parametrize("kind", KINDS)
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def with_tensors(family, tensors):
    model = plain(family)
    result = model.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert result.missing_keys in ([], ["lm_head.weight"])  # absent only where tied to the embedding
    return model


@EACH
@EACH_FAMILY
def test_merged_tensors_in_a_plain_model_give_the_adapted_logprobs(family, kind):
    """To 1e-4 nats in fp32, where the adapter changes them by more than 0.1 (test_adapters.py)."""
    wrapped = adapted(family, kind)
    merged = with_tensors(family, merged_tensors(wrapped))
    torch.testing.assert_close(logprobs(merged), logprobs(wrapped), atol=1e-4, rtol=1e-5)


@EACH
@EACH_FAMILY
def test_they_are_what_peft_itself_merges(family, kind):
    wrapped = adapted(family, kind)
    tensors = merged_tensors(wrapped)
    for name, tensor in merged_tensors(wrapped.merge_and_unload()).items():
        torch.testing.assert_close(tensors[name], tensor, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rslora", [False, True])
def test_scale(rslora):
    """W' - W = s B A. With rank 4, alpha 8: s = 8/4 = 2, or 8/√4 = 4 with rslora."""
    wrapped = trained(
        add_adapter(plain("llama"), AdapterSettings(rank=4, alpha=8.0, targets=("q_proj",), rslora=rslora))
    )
    layer = wrapped.get_base_model().model.layers[1].self_attn.q_proj
    change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = merged_tensors(wrapped)["model.layers.1.self_attn.q_proj.weight"]
    torch.testing.assert_close(merged - layer.base_layer.weight, (4 if rslora else 2) * change, atol=1e-6, rtol=1e-5)


def test_dora_gives_each_row_its_trained_length():
    """‖W'‖ of a row is m: Liu et al. 2024, equation 5; GPT-2 stores rows as columns."""
    for family, name, dim in (
        ("llama", "model.layers.0.self_attn.q_proj", 1),
        ("gpt2", "transformer.h.0.attn.c_attn", 0),
    ):
        wrapped = adapted(family, "dora")
        length = wrapped.get_base_model().get_submodule(name).lora_magnitude_vector["default"].weight
        torch.testing.assert_close(merged_tensors(wrapped)[f"{name}.weight"].norm(dim=dim), length)


def test_ia3_scales_outputs_with_their_biases_and_the_inputs_of_the_mlp():
    wrapped = adapted("qwen2", "ia3")
    layer = wrapped.get_base_model().model.layers[0]
    key, down = layer.self_attn.k_proj, layer.mlp.down_proj
    tensors = merged_tensors(wrapped)
    scale = key.ia3_l["default"][:, 0]
    torch.testing.assert_close(tensors["model.layers.0.self_attn.k_proj.bias"], key.base_layer.bias * scale)
    first = tensors["model.layers.0.self_attn.k_proj.weight"][:, 0]
    torch.testing.assert_close(first, key.base_layer.weight[:, 0] * scale)
    row = tensors["model.layers.0.mlp.down_proj.weight"][0]
    torch.testing.assert_close(row, down.base_layer.weight[0] * down.ia3_l["default"][0])


@EACH
@EACH_FAMILY
def test_merging_leaves_the_model_alone_and_copies_only_what_is_adapted(family, kind):
    wrapped = adapted(family, kind)
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    tensors = merged_tensors(wrapped)
    for name, tensor in wrapped.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    live = {parameter.data_ptr() for parameter in wrapped.parameters()}
    copied = {name for name, tensor in tensors.items() if tensor.data_ptr() not in live}
    changed = {name for name, tensor in tensors.items() if not torch.equal(tensor, base_tensors(wrapped)[name])}
    assert changed == copied
    assert not any(tensor.requires_grad for tensor in tensors.values())


@EACH_FAMILY
def test_without_adapter_the_tensors_are_the_state_dict_with_ties_once(family):
    model = plain(family)
    names = set(model.state_dict())
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tensors = merged_tensors(model)
    assert set(tensors) == (names - {"lm_head.weight"} if tied else names)
    assert all(tensor.data_ptr() == model.state_dict()[name].data_ptr() for name, tensor in tensors.items())


@EACH
def test_bfloat16_bases_are_merged_in_float32(kind):
    wrapped = trained(add_adapter(plain("llama").to(torch.bfloat16), KINDS[kind]))
    merged = merged_tensors(wrapped)["model.layers.0.self_attn.k_proj.weight"]
    assert merged.dtype is torch.float32
    assert not torch.equal(merged, merged.to(torch.bfloat16).float())  # not rounded on the way


@EACH
@EACH_FAMILY
def test_the_base_alone(family, kind):
    """Bit for bit, under a trained adapter."""
    tensors, expected = base_tensors(adapted(family, kind)), merged_tensors(plain(family))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["lora", "rslora", "ia3"])
@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 2**-23), (torch.bfloat16, 2**-7)])
@EACH_FAMILY
def test_merging_can_be_undone(family, dtype, eps, kind):
    """To 4 units of rounding of the format that the merged weights were stored in, relative to each matrix's largest
    entry before or after: rounding W' costs half a unit, computing it and taking the change back a few of fp32's."""
    wrapped = adapted(family, kind)
    base = {name: tensor.clone() for name, tensor in base_tensors(wrapped).items()}
    merged = {name: tensor.to(dtype).float() for name, tensor in merged_tensors(wrapped).items()}
    for name, tensor in wrapped.get_base_model().state_dict().items():
        own = name.replace(".base_layer", "")
        if own in merged:
            tensor.copy_(merged[own])
    recovered = unmerged_tensors(wrapped)
    assert recovered.keys() == base.keys()
    for name, tensor in recovered.items():
        largest = max(base[name].abs().max(), merged[name].abs().max())
        torch.testing.assert_close(tensor, base[name], atol=4 * eps * float(largest), rtol=0)


def test_what_replaces_numbers_cannot_be_undone():
    with pytest.raises(ModelError, match="base that the adapter names"):
        unmerged_tensors(adapted("llama", "dora"))
    with pytest.raises(ModelError, match="base that the adapter names"):
        unmerged_tensors(adapted("llama", "lora", token_ids=(7,)))
    wrapped = adapted("llama", "ia3")
    with torch.no_grad():
        wrapped.get_base_model().model.layers[2].mlp.down_proj.ia3_l["default"][0, 3] = 0.0
    with pytest.raises(ModelError, match="a scale of 0"):
        unmerged_tensors(wrapped)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules=["q_proj"], modules_to_save=["norm"]),
        LoraConfig(target_modules=["q_proj"], bias="lora_only"),
        LoraConfig(target_modules=["embed_tokens"]),
        LoHaConfig(target_modules=["q_proj"]),
    ],
    ids=["modules_to_save", "bias", "embedding", "loha"],
)
def test_other_kinds_of_adapter_are_refused_rather_than_merged_wrongly(config):
    with pytest.raises(ModelError, match="kind lora, dora or ia3"):
        check_mergeable(get_peft_model(plain("llama"), config))


def test_a_merged_adapter_is_refused():
    wrapped = adapted("llama", "lora")
    wrapped.merge_adapter()
    with pytest.raises(ModelError, match="merged"):
        merged_tensors(wrapped)
