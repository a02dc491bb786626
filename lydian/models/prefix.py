"""Prefix tuning: P trained keys and values a layer, which every token of every sequence sees before its own.

A prefix is no change of weights, so it cannot be merged. It is published beside the weights under the name PREFIX, as
one tensor [layers, 2, kv_heads, P, head_dim]; learner and engine put it in front by the same cache.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel, PrefixTuningConfig
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from lydian.errors import ModelError

PREFIX = "prefix"
"""Its name among a version's tensors; no parameter is called so."""


def prefix_config(model: PreTrainedModel, num_tokens: int) -> PrefixTuningConfig:
    """PEFT's settings of a prefix of this length for a model whose layers all keep keys and values of one shape."""
    keys = _states_of(model, torch.zeros(1, dtype=torch.long))
    num_layers, _, heads, _, head_dim = keys.shape
    return PrefixTuningConfig(
        task_type="CAUSAL_LM",
        num_virtual_tokens=num_tokens,
        num_layers=num_layers,
        num_attention_heads=heads,
        token_dim=heads * head_dim,
    )


def is_prefix(model: nn.Module) -> bool:
    """Whether the model's active adapter is a prefix."""
    return isinstance(model, PeftModel) and model.active_peft_config.peft_type == "PREFIX_TUNING"


def prefix_states(model: nn.Module) -> Tensor | None:
    """The prefix as keys and values [layers, 2, kv_heads, P, head_dim], with gradient; None for a model without."""
    if not is_prefix(model):
        return None
    config: Any = model.active_peft_config
    flat = _encoder(model).weight  # [P, layers · 2 · kv_heads · head_dim]
    split = flat.view(len(flat), config.num_layers, 2, config.num_attention_heads, -1)
    return split.permute(1, 2, 3, 0, 4)


@torch.no_grad()
def start_from_tokens(model: PeftModel) -> None:
    """Sets a fresh prefix to what the base computes for P random tokens: a mild change, unlike random numbers.

    Source: Li and Liang 2021, arXiv 2101.00190, section 7.4: real words start it better than random numbers do.
    """
    weight = _encoder(model).weight
    base = model.get_base_model()
    tokens = torch.randint(base.get_input_embeddings().weight.shape[0], (len(weight),))
    states = _states_of(base, tokens)
    weight.copy_(states.permute(3, 0, 1, 2, 4).reshape(weight.shape))


class PrefixCache(Cache):
    """The key/value cache of one forward pass over whole sequences: the prefix stands in front, all is remembered.

    prefix  [layers, 2, kv_heads, P, head_dim], or None for an empty one
    keys, values  a layer [rows, kv_heads, P + tokens, head_dim], filled by the pass
    """

    def __init__(self, prefix: Tensor | None = None) -> None:
        super().__init__(layers=[])
        self._prefix = prefix
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self._prefix is not None:
            keys, values = self._prefix[layer_idx]
            key_states, value_states = _joined(keys, key_states), _joined(values, value_states)
        self.keys.append(key_states)
        self.values.append(value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._prefix is None else self._prefix.shape[3]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0


def _joined(prefix: Tensor, states: Tensor) -> Tensor:
    return torch.cat([prefix.to(states.dtype).expand(len(states), -1, -1, -1), states], dim=2)


def _encoder(model: PeftModel) -> nn.Embedding:
    encoder = model.prompt_encoder[model.active_adapter]
    if encoder.prefix_projection:
        raise ModelError(
            where="prefix",
            given="a prefix that an MLP computes",
            expected="keys and values that are trained themselves",
            fix="Begin a prefix with AdapterSettings(kind='prefix').",
        )
    return encoder.embedding


@torch.no_grad()
def _states_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Keys and values that the model computes for the tokens, [layers, 2, kv_heads, tokens, head_dim]."""
    cache = PrefixCache()
    model.base_model(input_ids=tokens[None].to(model.device), cache=cache, use_cache=True)
    shapes = {tuple(states.shape) for states in (*cache.keys, *cache.values)}
    if len(shapes) != 1:
        raise ModelError(
            where=f"a prefix on {type(model).__name__}",
            given=f"keys and values of {len(shapes)} shapes",
            expected="one shape in all layers",
            fix='Use kind = "lora".',
        )
    return torch.stack([torch.cat([k, v]) for k, v in zip(cache.keys, cache.values, strict=True)])
