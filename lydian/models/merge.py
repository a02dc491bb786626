"""The weights that a base and its adapter amount to, and back: the base under a checkpoint that has an adapter merged.

Whatever samples from a policy is given merged tensors, so rollouts never touch the base that the adapter lies on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.ia3 import IA3Layer
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from peft.tuners.trainable_tokens import TrainableTokensLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lydian.errors import ModelError
from lydian.models.adapters import switched_off
from lydian.models.prefix import is_prefix


def merged_tensors(model: PreTrainedModel | PeftModel) -> dict[str, Tensor]:
    """The weights that base and active adapter amount to, under the base model's own state-dict names.

        lora   W + s B A
        dora   m ⊙ (W + s B A) / ‖W + s B A‖, the norm of each row (of the weights to one output)
        ia3    l ⊙ W, or W with column j times l_j where inputs are scaled; biases of scaled outputs likewise
        rows   the trained rows of the embedding in their places, in the output matrix too where that is tied
        4 bits the base's matrices in full

    What is changed is a new float32 tensor; everything else, and everything in a model without adapter, is a reference
    to the live tensor: copy it before training on if the old values matter. Of tied names only the first appears. The
    model is not changed. Inside PEFT's `disable_adapter()` the result is the base alone.

    Raises ModelError for adapters of other kinds (see `check_mergeable`).
    """
    check_mergeable(model)
    return _tensors(model, _merged)


def base_tensors(model: PreTrainedModel | PeftModel) -> dict[str, Tensor]:
    """The weights of the base alone, as `merged_tensors` gives those of base and adapter."""
    if not isinstance(model, PeftModel) or is_prefix(model):  # a prefix changes nothing in its base
        return _tensors(model, _merged)
    with switched_off(model):
        return merged_tensors(model)


def unmerged_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The base that gives the model's own weights when the active adapter is merged into it: what merging did, undone.

        lora  W = W' − s B A
        ia3   W = W' / l

    `model` has the adapter on a checkpoint into which that very adapter was merged. Each entry comes back within a few
    units of rounding of the number format that the checkpoint is stored in.

    Raises ModelError where the merged weights do not determine the base: for dora the length of each of its rows has
    been replaced by m, and trained rows of the embedding have replaced its own.
    """
    check_mergeable(model)
    for name, layer in model.named_modules():
        is_lost = isinstance(layer, TrainableTokensLayer) or (isinstance(layer, LoraLayer) and layer.lora_variant)
        if is_lost or (isinstance(layer, IA3Layer) and any((scale == 0).any() for scale in layer.ia3_l.values())):
            raise ModelError(
                where=f"unmerging {name}",
                given="DoRA, trained rows of the embedding, or a scale of 0, which replace numbers of the base",
                expected="an adapter whose change can be taken back: lora or ia3",
                fix="Use the base that the adapter names (base_model_name_or_path in adapter_config.json).",
            )
    return _tensors(model, _unmerged)


def check_mergeable(model: nn.Module) -> None:
    """Raise ModelError unless every adapter is an unmerged one of those that `merged_tensors` lists."""
    if is_prefix(model):
        raise ModelError(
            where="merging an adapter",
            given="a prefix",
            expected="an adapter that is a change of weights",
            fix="A prefix stays an adapter: save it with merge=False, and load it with adapter='continue'.",
        )
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and not _is_known(module):
            raise _not_plain(f"{name} ({type(module).__name__}{', merged' if module.merged else ''})")
    for config in model.peft_config.values() if isinstance(model, PeftModel) else ():
        if getattr(config, "modules_to_save", None) or getattr(config, "bias", "none") != "none":
            raise _not_plain(f"modules_to_save={config.modules_to_save}, bias={getattr(config, 'bias', 'none')!r}")


def trained_rows(model: nn.Module) -> set[int]:
    """The rows of the embedding that an adapter holds."""
    layers = [module for module in model.modules() if isinstance(module, TrainableTokensLayer)]
    return {row for layer in layers for rows in layer.token_indices.values() for row in rows}


def is_quantised(module: nn.Module) -> bool:
    """Whether a module keeps its own matrix in 4 bits."""
    return hasattr(getattr(module, "weight", None), "quant_state")


def _tensors(model: PreTrainedModel | PeftModel, changed: Callable[[nn.Module, str], Tensor]) -> dict[str, Tensor]:
    """The base's state dict, with what `changed(layer, "weight" or "bias")` gives for layers that are not plain."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = {
        name: module
        for name, module in base.named_modules()
        if isinstance(module, BaseTunerLayer) or (is_quantised(module) and not name.endswith("base_layer"))
    }
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    with torch.no_grad():
        for name, tensor in base.state_dict(keep_vars=True).items():  # the parameters themselves, so ties show
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            owner = _owner(name, layers)
            if owner is None:
                tensors[name] = tensor.detach()
                continue
            leaf = name.removeprefix(f"{owner}.").removeprefix("base_layer.")
            if leaf in ("weight", "bias"):  # all else is the adapter's own, or how 4 bits are to be read
                tensors[f"{owner.removesuffix('.token_adapter')}.{leaf}"] = changed(layers[owner], leaf)
    return tensors


def _owner(name: str, layers: dict[str, nn.Module]) -> str | None:
    """…q_proj.lora_A.default.weight → …q_proj"""
    while name and name not in layers:
        name = name.rpartition(".")[0]
    return name or None


def _merged(layer: nn.Module, leaf: str) -> Tensor:
    if isinstance(layer, LoraLayer) and leaf == "weight":
        return _merged_weight(layer)
    value = _of_base(layer, leaf)
    for adapter in _active(layer):
        if isinstance(layer, IA3Layer) and _is_scaled(layer, adapter, leaf):
            value = value.float() * _scale(layer, adapter, leaf)
        elif isinstance(layer, TrainableTokensLayer) and adapter in layer.trainable_tokens_delta:
            rows = torch.tensor(layer.token_indices[adapter], device=value.device)
            value = value.float().index_copy(0, rows, layer.trainable_tokens_delta[adapter].detach().float())
    return value


def _unmerged(layer: nn.Module, leaf: str) -> Tensor:
    value = _of_base(layer, leaf)
    for adapter in _active(layer):
        if isinstance(layer, LoraLayer) and leaf == "weight" and adapter in layer.lora_A:
            value = _plus_product(value, layer, adapter, sign=-1.0)
        elif isinstance(layer, IA3Layer) and _is_scaled(layer, adapter, leaf):
            value = value.float() / _scale(layer, adapter, leaf)
    return value


def _merged_weight(layer: LoraLayer) -> Tensor:
    weight = _of_base(layer, "weight")
    for adapter in _active(layer):
        if adapter not in layer.lora_A:
            continue
        weight = _plus_product(weight, layer, adapter)
        if adapter in layer.lora_variant:  # DoRA
            is_transposed = layer.fan_in_fan_out
            length = layer.lora_magnitude_vector[adapter].weight.detach().float()
            factor = length / weight.norm(dim=0 if is_transposed else 1)
            weight = weight * (factor if is_transposed else factor[:, None])
    return weight


def _plus_product(weight: Tensor, layer: LoraLayer, adapter: str, sign: float = 1.0) -> Tensor:
    """W ± s B A."""
    a = layer.lora_A[adapter].weight.detach().float()
    b = layer.lora_B[adapter].weight.detach().float()
    left, right = (a.T, b.T) if layer.fan_in_fan_out else (b, a)
    return torch.addmm(weight.float(), left, right, alpha=sign * layer.scaling[adapter])  # one pass, one new tensor


def _is_scaled(layer: IA3Layer, adapter: str, leaf: str) -> bool:
    """A bias is not, where inputs are scaled instead of outputs."""
    return adapter in layer.ia3_l and not (leaf == "bias" and layer.is_feedforward)


def _scale(layer: IA3Layer, adapter: str, leaf: str) -> Tensor:
    scale: Tensor = layer.ia3_l[adapter].detach().float()
    return scale.flatten() if leaf == "bias" else scale.T if layer.fan_in_fan_out else scale


def _of_base(layer: nn.Module, leaf: str) -> Tensor:
    plain = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer
    value: Any = dequantize_module_weight(plain) if leaf == "weight" else plain.bias
    return value.detach()


def _active(layer: nn.Module) -> list[str]:
    return list(layer.active_adapters) if isinstance(layer, BaseTunerLayer) and not layer.disable_adapters else []


def _is_known(layer: BaseTunerLayer) -> bool:
    if layer.merged:
        return False
    if isinstance(layer, TrainableTokensLayer):
        return True
    is_linear = isinstance(layer.get_base_layer(), nn.Linear | Conv1D)
    if isinstance(layer, LoraLayer):
        is_dora = all(isinstance(variant, DoraLinearVariant) for variant in layer.lora_variant.values())
        return is_linear and is_dora and not any(layer.lora_bias.values())
    return is_linear and isinstance(layer, IA3Layer)


def _not_plain(given: str) -> ModelError:
    return ModelError(
        where="adapter",
        given=given,
        expected="an unmerged adapter of kind lora, dora or ia3 on linear modules, without biases or modules_to_save",
        fix="Merge that adapter when loading (adapter=None) and begin a new one.",
    )
