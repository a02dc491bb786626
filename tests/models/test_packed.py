"""Frozen linear layers: stacked, packed or not, they compute what the plain layers do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lydian.models import packed
from lydian.models.packed import FrozenLinear, freeze_linears, parameter_names


class Two(nn.Module):
    """Two layers of one input, of 5 and 3 outputs."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, 5, bias=bias), nn.Linear(7, 3, bias=bias)


@pytest.fixture(params=[True, False], ids=["packed", "plain"])
def is_packed(request, monkeypatch) -> bool:
    if request.param:
        monkeypatch.setattr(packed, "_FEWEST_WEIGHTS", 1)
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_stacked_layers_give_their_outputs_side_by_side(bias: bool, is_packed: bool):
    model, x = Two(bias), torch.randn(4, 2, 7)
    expected = torch.cat([model.a(x), model.b(x)], dim=-1)
    frozen = FrozenLinear([model.a, model.b], parameter_names(model))
    torch.testing.assert_close(frozen(x), expected.detach())
    assert frozen._is_packed is is_packed
    assert list(frozen.names) == (["a.weight", "b.weight"] + ["a.bias", "b.bias"] * bias)
    assert list(model.parameters()) == []  # taken over, not held twice


def test_load_takes_values_by_name(is_packed: bool):
    model, new, x = Two(True), Two(True), torch.randn(4, 7)
    frozen = FrozenLinear([model.a, model.b], parameter_names(model))
    tensors = {name: tensor.detach().clone() for name, tensor in new.named_parameters()}
    frozen.load(tensors)
    torch.testing.assert_close(frozen(x), torch.cat([new.a(x), new.b(x)], dim=-1).detach())
    tensors["a.weight"].zero_()  # what was published may be overwritten later
    torch.testing.assert_close(frozen(x), torch.cat([new.a(x), new.b(x)], dim=-1).detach())


def test_freezing_a_model_replaces_each_layer_and_keeps_a_tied_embedding(is_packed: bool):
    model = nn.ModuleDict({"embed": nn.Embedding(6, 7), "body": Two(False), "head": nn.Linear(7, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    x = torch.randn(4, 7)
    expected = model["head"](x).detach(), model["body"].a(x).detach()
    frozen = freeze_linears(model)
    torch.testing.assert_close((model["head"](x), model["body"].a(x)), expected)
    assert sorted(name for layer in frozen for name in layer.names) == [
        "body.a.weight",
        "body.b.weight",
        "embed.weight",
    ]
    assert [name for name, _ in model.named_parameters()] == ["embed.weight"]


def test_bfloat16_layers_take_fp32_values(is_packed: bool):
    """What a learner publishes is fp32. The outputs are those of layers in bf16, up to its rounding."""
    model, new, x = Two(True).bfloat16(), Two(True), torch.randn(4, 7).bfloat16()
    frozen = FrozenLinear([model.a, model.b], parameter_names(model))
    assert frozen._is_packed is (is_packed and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    frozen.load({name: tensor.detach() for name, tensor in new.named_parameters()})
    new.bfloat16()
    torch.testing.assert_close(frozen(x), torch.cat([new.a(x), new.b(x)], dim=-1).detach(), atol=0.02, rtol=0.02)
