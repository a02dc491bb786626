"""Low-rank adapters: PEFT's LoRA on a frozen base, and the weights that base and adapter amount to."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lydian.errors import ModelError, RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """Settings of a LoRA adapter: W x becomes W x + s B A x with W frozen.

    rank     r, the rows of A and the columns of B
    alpha    s = alpha / r
    targets  which matrices: "all-linear" (all but the output matrix) or names as modules end, e.g. ("q_proj", "v_proj")
    rslora   s = alpha / sqrt(r) instead, so that the step size does not shrink with the rank

    There is no dropout: the adapter's logprobs must be those of the policy that sampled. Raises RecipeError.

    Source: Hu et al. 2021, arXiv 2106.09685, section 4.1; rslora: Kalajdzievski 2023, arXiv 2312.03732, theorem 3.2.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    rslora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise _wrong("rank", self.rank, "an integer of at least 1", "Common values are 8 to 64.")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise _wrong("alpha", self.alpha, "a positive number", "Common values are rank or twice the rank.")
        names = self.targets if isinstance(self.targets, tuple) else ()
        if self.targets != "all-linear" and not (names and all(isinstance(name, str) and name for name in names)):
            raise _wrong(
                "targets", repr(self.targets), '"all-linear" or module names', 'Write e.g. ("q_proj", "v_proj").'
            )


def add_adapter(model: PreTrainedModel | PeftModel, settings: AdapterSettings) -> PeftModel:
    """Freeze a model and wrap it with a fresh LoRA adapter, which changes nothing until it is trained (B = 0).

    A is drawn from torch's global generator; B and A are float32 whatever the base is. The output matrix cannot be a
    target: logprobs are computed from it directly, and it may be tied to the embedding.

    Raises ModelError when a target matches no linear module (PEFT itself complains only when none of them does), or
    when the model already has an adapter.
    """
    if isinstance(model, PeftModel) or any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise ModelError(
            where="add_adapter",
            given="a model with an adapter",
            expected="a model without one",
            fix="Train that adapter further, or merge it and save the merged model first.",
        )
    linear = _linear_modules(model)
    wanted = settings.targets if isinstance(settings.targets, tuple) else tuple(linear)
    for target in wanted:
        if not any(_matches(name, target) for name in linear):
            raise ModelError(
                where=f"add_adapter on {type(model).__name__}",
                given=f"target {target!r}, which matches no linear module",
                expected=f"some of {', '.join(sorted({name.rsplit('.', 1)[-1] for name in linear}))}",
                fix='Name those, or use "all-linear".',
            )
    targeted = [module for name, module in linear.items() if any(_matches(name, target) for target in wanted)]
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
        lora_dropout=0.0,
        use_rslora=settings.rslora,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in targeted),  # GPT-2 stores [inputs, outputs]
    )
    with warnings.catch_warnings():
        # PEFT asks for an attribute that transformers has renamed; no user can do anything about that.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        wrapped = get_peft_model(model, config)
    return wrapped.train(model.training)


def num_trainable(model: nn.Module) -> int:
    """The number of parameters that training changes (tied ones once).

    >>> num_trainable(nn.Linear(3, 2).requires_grad_(False)), num_trainable(nn.Linear(3, 2))
    (0, 8)
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def merged_tensors(model: PreTrainedModel | PeftModel) -> dict[str, Tensor]:
    """The weights that base and active adapter amount to, under the base model's own state-dict names.

    Adapted matrices are new float32 tensors, W + s B A; everything else, and everything in a model without adapter,
    is a reference to the live tensor: copy it before training on if the old values matter. Of tied names only the
    first appears. The model is not changed. Inside PEFT's `disable_adapter()` the result is the base alone.

    Raises ModelError for adapters that are more than W + s B A (see `check_mergeable`).
    """
    check_mergeable(model)
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = {name: module for name, module in base.named_modules() if isinstance(module, LoraLinear)}
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    with torch.no_grad():
        for name, tensor in base.state_dict(keep_vars=True).items():  # the parameters themselves, so ties show
            owner, _, leaf = name.rpartition(".")
            layer = layers.get(owner.removesuffix(".base_layer"))
            if id(tensor) in seen or (layer is None and _is_adapter_tensor(owner, layers)):
                continue
            seen.add(id(tensor))
            if layer is None:
                tensors[name] = tensor.detach()
            else:
                merged = _merged_weight(layer) if leaf == "weight" else tensor.detach()
                tensors[f"{owner.removesuffix('.base_layer')}.{leaf}"] = merged
    return tensors


def check_mergeable(model: nn.Module) -> None:
    """Raise ModelError when an adapter is anything but an unmerged plain LoRA on linear modules (DoRA, biases, …)."""
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer) and (
            type(module) is not LoraLinear or module.merged or module.lora_variant or any(module.lora_bias.values())
        ):
            raise _not_plain(f"{name} ({type(module).__name__}{', merged' if module.merged else ''})")
    for config in model.peft_config.values() if isinstance(model, PeftModel) else ():
        if getattr(config, "modules_to_save", None) or getattr(config, "bias", "none") != "none":
            raise _not_plain(f"modules_to_save={config.modules_to_save}, bias={config.bias!r}")


def _merged_weight(layer: LoraLinear) -> Tensor:
    weight = layer.get_base_layer().weight.detach()
    for adapter in () if layer.disable_adapters else layer.active_adapters:
        if adapter not in layer.lora_A:
            continue
        a = layer.lora_A[adapter].weight.float()
        b = layer.lora_B[adapter].weight.float()
        left, right = (a.T, b.T) if layer.fan_in_fan_out else (b, a)
        weight = torch.addmm(weight.float(), left, right, alpha=layer.scaling[adapter])  # one pass, one new tensor
    return weight


def _is_adapter_tensor(owner: str, layers: dict[str, LoraLinear]) -> bool:
    # …q_proj.lora_A.default → …q_proj
    return any(part.startswith("lora_") for part in owner.split(".")) and owner.rsplit(".", 2)[0] in layers


def _linear_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    output = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output
    }


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)


def _wrong(setting: str, given: object, expected: str, fix: str) -> RecipeError:
    return RecipeError(where=f"adapter.{setting}", given=given, expected=expected, fix=fix)


def _not_plain(given: str) -> ModelError:
    return ModelError(
        where="adapter",
        given=given,
        expected="an unmerged LoRA adapter on linear modules, without DoRA, trained biases or modules_to_save",
        fix="Merge that adapter when loading (adapter=None) and begin a new one.",
    )
