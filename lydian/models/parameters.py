"""How many parameters training changes, and of how many: known before it begins."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.load import BUNDLED, FETCHED, named_folder
from lydian.models.prefix import PREFIX, is_prefix
from lydian.models.read import read_tokenizer, reading
from lydian.models.vocabulary import add_tokens, fit_vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Parameters of all modules of one name.

    name       as the modules' paths end: q_proj, embed_tokens
    trainable  numbers that training changes, an adapter's or the modules' own
    total      numbers of the modules themselves
    """

    name: str
    trainable: int
    total: int


def count_parameters(model: nn.Module) -> list[Count]:
    """Counts by name of module, in the model's order; tied parameters once, where they come first.

    A LoRA of rank r on a matrix with i inputs and o outputs has r (i + o) parameters beside its i · o: at rank 8 on
    768 × 768, 12,288 beside 589,824.

    >>> from peft import LoraConfig, get_peft_model
    >>> matrix = nn.ModuleDict({"q_proj": nn.Linear(768, 768, bias=False)})
    >>> count_parameters(get_peft_model(matrix, LoraConfig(r=8, target_modules=["q_proj"])))
    [Count(name='q_proj', trainable=12288, total=589824)]
    """
    body = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = {name for name, module in body.named_modules() if isinstance(module, BaseTunerLayer)}
    counts: dict[str, list[int]] = {}
    for path, parameter in body.named_parameters():
        owner = next((o for o in _owners(path) if o in layers), None)
        is_own = owner is None or ".base_layer." in path
        plain = (owner or path.rpartition(".")[0]).removesuffix(".token_adapter")
        count = counts.setdefault(plain.rpartition(".")[2], [0, 0])
        count[0] += parameter.numel() * parameter.requires_grad
        count[1] += _numel(parameter) * is_own
    if is_prefix(model):
        assert isinstance(model, PeftModel)
        counts[PREFIX] = [sum(p.numel() for p in model.prompt_encoder.parameters() if p.requires_grad), 0]
    return [Count(name=name, trainable=trained, total=total) for name, (trained, total) in counts.items()]


def describe_parameters(model: nn.Module) -> str:
    """One line: what trains of how many, in all and by name of module.

    >>> describe_parameters(nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 1).requires_grad_(False)}))
    'trains 8 parameters of 11 (72.7%): a 8 of 8'
    """
    counts = count_parameters(model)
    trained, total = sum(c.trainable for c in counts), sum(c.total for c in counts)
    if not isinstance(model, PeftModel) and trained == total:
        return f"trains all {total:,} parameters"
    parts = (
        f"{c.name} {c.trainable:,} of {c.total:,}" if c.total else f"{c.name} {c.trainable:,}"
        for c in counts
        if c.trainable
    )
    relation = "beside" if isinstance(model, PeftModel) else "of"
    share = f"{100 * trained / total:.3g}%"
    return f"trains {trained:,} parameters {relation} {total:,} ({share}): {', '.join(parts)}"


def planned_parameters(source: str, adapter: AdapterSettings | None, new_tokens: Seq[str] = ()) -> str | None:
    """The line of `describe_parameters` from a checkpoint's config alone; see `planned_model`."""
    model = planned_model(source, adapter, new_tokens)
    return None if model is None else describe_parameters(model)


def planned_model(
    source: str, adapter: AdapterSettings | None, new_tokens: Seq[str] = ()
) -> PreTrainedModel | PeftModel | None:
    """The model of a checkpoint's config, with its adapter, on torch's `meta` device: shapes and no values.

    None where there is no config on this machine: a hub id, a GGUF file, random weights. Raises ModelError for a config
    that cannot be read, and what `add_adapter` raises.
    """
    place = named_folder(source) if source in BUNDLED + FETCHED else Path(source).expanduser()
    if not (place / "config.json").is_file():
        return None
    with reading(place), torch.device("meta"):
        config = AutoConfig.from_pretrained(place, local_files_only=True)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # as it will be loaded
    token_ids: tuple[int, ...] = ()
    if new_tokens:
        tokenizer = read_tokenizer(place)
        token_ids = add_tokens(tokenizer, new_tokens)
        fit_vocabulary(model, tokenizer)
    return add_adapter(model, adapter, token_ids=token_ids) if adapter else model


def outline(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """A model of the same sizes without adapters, on torch's `meta` device: shapes and no values."""
    causal_lm: PreTrainedModel = model.get_base_model() if isinstance(model, PeftModel) else model
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(causal_lm.config), dtype=torch.float32)


def _owners(path: str) -> list[str]:
    """The path of a parameter's module and of all modules around it, innermost first."""
    parts = path.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _numel(parameter: nn.Parameter) -> int:
    """The number of values, also where two share a byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else math.prod(state.shape)
