"""Llama-like models (Llama, Mistral, Qwen2, Qwen3) written out for sampling: few operations, nothing copied.

transformers' modules serve every need of every model; for one token a row most of their time is overhead. Here queries,
keys and values are one matrix product, and so are the two halves of the gated MLP; keys and values that several query
heads share are read where they lie in the cache, not repeated first. Numbers equal transformers' up to rounding
(tests/models/test_llama_decode.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from lydian.errors import ModelError
from lydian.models.packed import FrozenLinear, parameter_names
from lydian.models.policy import sliding_layers

if TYPE_CHECKING:
    from lydian.models.cache import SharedPrompts, SlotCache

ARCHITECTURES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
MOVING_ROTATIONS = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change as a sequence grows: no table of positions holds them."""


def is_llama_like(model: PreTrainedModel) -> bool:
    """Whether `LlamaBody` computes this model: its class, activation and rotary embedding, and no sliding window."""
    config = model.config
    return (
        type(model) in ARCHITECTURES
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] not in MOVING_ROTATIONS
        and sliding_layers(config).window is None
    )


def cache_dtype(model: PreTrainedModel, device: torch.device) -> torch.dtype:
    """Of the keys and values while a model is sampled from on a device.

    A CPU reads fp32 keys faster than it multiplies single rows in bf16, and the scores are exacter; models that
    transformers' own modules compute keep to their own type.
    """
    is_widened = device.type == "cpu" and is_llama_like(model)
    return torch.promote_types(model.dtype, torch.float32) if is_widened else model.dtype


@dataclass(frozen=True, slots=True)
class _Block:
    """RMSNorm → attention → RMSNorm → gated MLP; both are added to the residual stream. Qwen3 norms its heads too."""

    attention_norm: Tensor
    query_key_value: FrozenLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_out: FrozenLinear
    mlp_norm: Tensor
    gate_up: FrozenLinear
    down: FrozenLinear

    @property
    def linears(self) -> tuple[FrozenLinear, ...]:
        return self.query_key_value, self.attention_out, self.gate_up, self.down

    @property
    def norms(self) -> list[Tensor]:
        norms = (self.attention_norm, self.query_norm, self.key_norm, self.mlp_norm)
        return [norm for norm in norms if norm is not None]


class LlamaBody:
    """Hidden states and logits of a Llama-like model, whose weights it takes over; see `Body`."""

    def __init__(self, model: PreTrainedModel) -> None:
        names = parameter_names(model)
        self.config: PreTrainedConfig = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.shares_prompts = self.device.type == "cpu"
        self.cache_dtype = cache_dtype(model, self.device)
        self._eps: float = model.config.rms_norm_eps
        self._kv_heads: int = model.config.num_key_value_heads
        self._query_heads: int = model.config.num_attention_heads
        self._rotary = model.model.rotary_emb
        self._rotations = torch.empty(0)
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._norm: Tensor = model.model.norm.weight
        self._blocks = [_block(layer, names) for layer in model.model.layers]
        self._head = FrozenLinear([model.lm_head], names)
        self._linears = [self._head, *(linear for block in self._blocks for linear in block.linears)]
        norms = (norm for block in self._blocks for norm in block.norms)
        self._parameters = {names[id(p)]: p for p in (self._embedding, self._norm, *norms)}
        self.names: Set[str] = self._parameters.keys() | {name for linear in self._linears for name in linear.names}
        self._check_complete(set(names.values()))

    def reserve(self, num_positions: int) -> None:
        """Makes the rotations of positions 0 … num_positions − 1, [position, (cos, sin), 1, head_dim]."""
        if len(self._rotations) < num_positions:
            positions = torch.arange(num_positions, device=self.device)[None]
            cos, sin = self._rotary(self._embedding[:1].to(self.cache_dtype), positions)
            half = sin.shape[-1] // 2
            sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)  # rotate_half(x) sin = swapped halves · this
            self._rotations = torch.stack((cos[0], sin[0]), dim=1)[:, :, None]

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of all parameters."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[name])
        for linear in self._linears:
            linear.load(tensors)

    def hidden(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache | SharedPrompts) -> Tensor:
        """Last hidden states [n, t, d] of tokens [n, t]; see `Body`."""
        cos, sin = self._rotations[positions].unbind(2)
        x = functional.embedding(tokens, self._embedding)
        for index, block in enumerate(self._blocks):
            x = x + self._attention(block, self._rms(x, block.attention_norm), (cos, sin), mask, cache, index)
            gate, up = block.gate_up(self._rms(x, block.mlp_norm)).chunk(2, dim=-1)
            x = x + block.down(functional.silu(gate).mul_(up))
        return self._rms(x, self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary]."""
        logits: Tensor = self._head(hidden)
        return logits

    def _attention(
        self,
        block: _Block,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: SlotCache | SharedPrompts,
        index: int,
    ) -> Tensor:
        n, t, _ = x.shape
        q, kv = self._query_heads, self._kv_heads
        heads = block.query_key_value(x).view(n, t, q + 2 * kv, -1)  # queries, keys, values
        if block.query_norm is not None and block.key_norm is not None:
            heads[:, :, :q] = self._rms(heads[:, :, :q], block.query_norm)
            heads[:, :, q : q + kv] = self._rms(heads[:, :, q : q + kv], block.key_norm)
        heads = heads.to(self.cache_dtype)
        rotated = heads[:, :, : q + kv]
        cos, sin = rotation
        swapped = rotated.roll(rotated.shape[-1] // 2, -1)
        rotated.mul_(cos).addcmul_(swapped, sin)
        queries, keys, values = heads.transpose(1, 2).split([q, kv, kv], dim=1)
        out = cache.attend(queries, keys, values, mask, index)
        result: Tensor = block.attention_out(out.transpose(1, 2).reshape(n, t, -1).to(x.dtype))
        return result

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._eps)

    def _check_complete(self, names: set[str]) -> None:
        if self.names != names:
            raise ModelError(
                where=f"LlamaBody of {type(self.config).__name__}",
                given=f"parameters {sorted(self.names ^ names)[:3]} that it does not know",
                expected="the parameters of Llama, Mistral, Qwen2 or Qwen3",
                fix="Sample with another version of transformers.",
            )


def _block(layer: Any, names: Mapping[int, str]) -> _Block:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return _Block(
        attention_norm=layer.input_layernorm.weight,
        query_key_value=FrozenLinear([attention.q_proj, attention.k_proj, attention.v_proj], names),
        query_norm=None if query_norm is None else query_norm.weight,
        key_norm=None if key_norm is None else key_norm.weight,
        attention_out=FrozenLinear([attention.o_proj], names),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=FrozenLinear([mlp.gate_proj, mlp.up_proj], names),
        down=FrozenLinear([mlp.down_proj], names),
    )
