"""Adapters: few parameters trained beside a frozen base, by PEFT. `lydian.models.merge` says what they amount to.

kind    computes                                                               merged into the weights
lora    W x + s B A x                                                          exactly
dora    m ⊙ (W + s B A) x / ‖W + s B A‖, m and the norm one number a row       exactly
ia3     l ⊙ W x for keys and values, W (l ⊙ x) for the last matrix of an MLP   exactly
prefix  attention over P further keys and values a layer                       never: no weight is equal to it
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.constants import (
    TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING,
    TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING,
)
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lydian.errors import ModelError, RecipeError
from lydian.models.prefix import prefix_config, start_from_tokens

_OWN: dict[str, dict[str, Any]] = {
    "lora": {"rank": 16, "alpha": 32.0, "targets": "all-linear", "rslora": False},
    "dora": {"rank": 16, "alpha": 32.0, "targets": "all-linear", "rslora": False},
    "ia3": {},
    "prefix": {"prefix_tokens": 16},
}
"""The settings that each kind has, with their defaults."""

_IA3_TARGETS = (("k_proj", "v_proj", "down_proj"), ("down_proj",))
"""Matrices whose outputs are scaled, among them those whose inputs are, in architectures with Llama's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What is trained beside a frozen base; a setting that is left out has its kind's default, or is not the kind's.

    kind           lora, dora (length and direction of each row apart), ia3 (scales), prefix (keys and values in front)
    rank           of lora and dora: r, the rows of A and the columns of B (16)
    alpha          of lora and dora: s = alpha / r (32)
    rslora         of lora and dora: s = alpha / sqrt(r), so that the step size does not shrink with the rank (false)
    targets        of lora and dora: "all-linear" (all but the output matrix), or names as modules end,
                   e.g. ("q_proj", "v_proj")
    prefix_tokens  of prefix: P, the keys and values a layer (16)
    is_quantised   hold the base's matrices in 4 bits (NF4) while training: a quarter of the memory of bfloat16, slower
                   (QLoRA); needs the extra `quantised`

    There is no dropout: the adapter's logprobs must be those of the policy that sampled. Raises RecipeError.

    Source: lora: Hu et al. 2021, arXiv 2106.09685, section 4.1; rslora: Kalajdzievski 2023, arXiv 2312.03732,
    theorem 3.2; dora: Liu et al. 2024, arXiv 2402.09353, equation 5; ia3: Liu et al. 2022, arXiv 2205.05638,
    section 3.3; prefix: Li and Liang 2021, arXiv 2101.00190, section 4; 4 bits: Dettmers et al. 2023, arXiv 2305.14314.
    """

    kind: str = "lora"
    rank: int | None = None
    alpha: float | None = None
    rslora: bool | None = None
    targets: Literal["all-linear"] | tuple[str, ...] | None = None
    prefix_tokens: int | None = None
    is_quantised: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _OWN:
            kinds = ", ".join(_OWN)
            fix = "PEFT offers no bottleneck adapters (Houlsby's); lora has their size and can be merged."
            raise _wrong("kind", repr(self.kind), f"one of {kinds}", fix)
        own = _OWN[self.kind]
        for name in ("rank", "alpha", "rslora", "targets", "prefix_tokens"):
            value = getattr(self, name)
            if name in own:
                object.__setattr__(self, name, own[name] if value is None else value)
            elif value is not None:
                settings = f"only {', '.join(own)}" if own else "none of its own"
                raise _wrong(name, repr(value), f"{settings} for the kind {self.kind}", "Leave it out.")
        self._check_values()

    def _check_values(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise _wrong("rank", self.rank, "an integer of at least 1", "Common values are 8 to 64.")
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise _wrong("alpha", self.alpha, "a positive number", "Common values are rank or twice the rank.")
        names = self.targets if isinstance(self.targets, tuple) else ()
        is_named = bool(names) and all(isinstance(name, str) and name for name in names)
        if self.targets not in ("all-linear", None) and not is_named:
            raise _wrong(
                "targets", repr(self.targets), '"all-linear" or module names', 'Write e.g. ("q_proj", "v_proj").'
            )
        if self.prefix_tokens is not None and self.prefix_tokens < 1:
            raise _wrong("prefix_tokens", self.prefix_tokens, "an integer of at least 1", "Common values are 8 to 64.")


def add_adapter(
    model: PreTrainedModel | PeftModel, settings: AdapterSettings, *, token_ids: Seq[int] = ()
) -> PeftModel:
    """Freeze a model and wrap it with a fresh adapter, which changes nothing until it is trained; but for `prefix`.

    A prefix begins as the keys and values of P random tokens before every sequence. What is random is drawn from
    torch's global generator; adapters are float32 whatever the base is. The output matrix cannot be a target:
    logprobs are computed from it directly, and it may be tied to the embedding.

    token_ids  rows of the embedding, and of the output matrix, that are trained as well (lora and dora); where the two
               are tied, they stay tied

    Raises ModelError when a target matches no linear module (PEFT itself complains only when none of them does), when
    the kind does not know the architecture, or when the model already has an adapter.
    """
    if isinstance(model, PeftModel) or any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise ModelError(
            where="add_adapter",
            given="a model with an adapter",
            expected="a model without one",
            fix="Train that adapter further, or merge it and save the merged model first.",
        )
    with warnings.catch_warnings():
        # PEFT asks for an attribute that transformers has renamed; no user can do anything about that.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        wrapped = get_peft_model(model, _config(model, settings, token_ids))
    if settings.kind == "prefix":
        start_from_tokens(wrapped)
    return wrapped.train(model.training)


def is_idle(model: nn.Module, values: Mapping[str, Tensor]) -> bool:
    """Whether a model with these values is its base alone: they are those of all its low-rank adapters and of nothing
    else, and B = 0 everywhere, as when adapters are fresh."""
    adapters = {name for name, _ in model.named_parameters() if ".lora_" in name}
    is_base = all(".lora_A." in name or (".lora_B." in name and not part.any()) for name, part in values.items())
    return is_base and bool(adapters) and adapters == values.keys()


def switched_off(model: PreTrainedModel | PeftModel) -> AbstractContextManager[None]:
    """The base without its adapter, as long as the context is open."""
    disabled: AbstractContextManager[None] = model.disable_adapter()
    return disabled


def num_trainable(model: nn.Module) -> int:
    """The number of parameters that training changes (tied ones once).

    >>> num_trainable(nn.Linear(3, 2).requires_grad_(False)), num_trainable(nn.Linear(3, 2))
    (0, 8)
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _config(model: PreTrainedModel, settings: AdapterSettings, token_ids: Seq[int]) -> PeftConfig:
    if token_ids and settings.kind not in ("lora", "dora"):
        raise ModelError(
            where="add_adapter",
            given=f"rows of the embedding to train beside an adapter of kind {settings.kind}",
            expected="lora or dora, the kinds of which PEFT allows it",
            fix="Choose one of them, or leave out new_tokens.",
        )
    if settings.kind == "prefix":
        return prefix_config(model, settings.prefix_tokens or 0)
    linear = _linear_modules(model)
    if settings.kind == "ia3":
        targets, scaled_inputs = _ia3_targets(model, linear)
        return IA3Config(
            task_type="CAUSAL_LM",
            target_modules=list(targets),
            feedforward_modules=list(scaled_inputs),
            fan_in_fan_out=_is_transposed(linear, targets),
        )
    targets = settings.targets if isinstance(settings.targets, tuple) else tuple(linear)
    _check_targets(model, linear, targets)
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=settings.targets if isinstance(settings.targets, str) else list(targets),
        lora_dropout=0.0,
        use_rslora=bool(settings.rslora),
        use_dora=settings.kind == "dora",
        fan_in_fan_out=_is_transposed(linear, targets),
        trainable_token_indices=_token_rows(model, token_ids) or None,
    )


def _check_targets(model: nn.Module, linear: dict[str, nn.Module], targets: Seq[str]) -> None:
    for target in targets:
        if not any(_matches(name, target) for name in linear):
            raise ModelError(
                where=f"add_adapter on {type(model).__name__}",
                given=f"target {target!r}, which matches no linear module",
                expected=f"some of {', '.join(sorted({name.rsplit('.', 1)[-1] for name in linear}))}",
                fix='Name those, or use "all-linear".',
            )


def _ia3_targets(model: PreTrainedModel, linear: dict[str, nn.Module]) -> tuple[Seq[str], Seq[str]]:
    """The matrices that (IA)³ scales, and those of them whose inputs it scales instead of their outputs."""
    if all(any(_matches(name, target) for name in linear) for target in _IA3_TARGETS[0]):
        return _IA3_TARGETS
    kind = model.config.model_type
    if kind not in TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING:
        raise ModelError(
            where=f"add_adapter on {type(model).__name__}",
            given=f"an architecture, {kind!r}, whose keys, values and MLP (IA)³ does not know",
            expected=f"one with modules {', '.join(_IA3_TARGETS[0])}, or one that PEFT lists",
            fix='Use kind = "lora" with `targets`.',
        )
    return (
        TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING[kind],
        TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING[kind],
    )


def _token_rows(model: PreTrainedModel, token_ids: Seq[int]) -> dict[str, list[int]]:
    """Which rows of which modules train: the embedding's, and the output matrix's where it is another one.

    PEFT wraps a tied output matrix by itself.
    """
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    matrices = [embedding] if output.weight is embedding.weight else [embedding, output]
    names = [next(name for name, module in model.named_modules() if module is matrix) for matrix in matrices]
    return {name: sorted(token_ids) for name in names} if token_ids else {}


def _is_transposed(linear: dict[str, nn.Module], targets: Seq[str]) -> bool:
    """Whether the targets store [inputs, outputs], as GPT-2's do."""
    return any(
        isinstance(module, Conv1D) and any(_matches(name, target) for target in targets)
        for name, module in linear.items()
    )


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
