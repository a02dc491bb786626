"""Step-by-step decoding on any transformers causal language model: slots of one preallocated key/value cache.

A slot holds one running completion. All keys and values live in one buffer per layer, written in place; each slot has
its own length, so completions of different prompts run side by side without padding, and a slot that is done is filled
by moving the last running one into its place.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from lydian.models.policy import sliding_layers

CausalLM = PreTrainedModel
"""A transformers causal language model, for those who may not import transformers."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt's keys and values, per layer [kv_heads, tokens, head_dim], and the hidden state that predicts next."""

    keys: list[Tensor]
    values: list[Tensor]
    hidden: Tensor

    @property
    def num_tokens(self) -> int:
        return self.keys[0].shape[1]


class Decoder:
    """A transformers causal language model with a cache of `num_slots` completions of up to `capacity` tokens each."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, capacity: int) -> None:
        self.model = model
        self._body = model.base_model
        self._config = model.config.get_text_config()
        self._layer_kinds = sliding_layers(self._config)
        self._output = model.get_output_embeddings()
        self.device = model.device
        self._cache = _SlotCache(num_slots, capacity, self.device)
        self._lengths = torch.zeros(num_slots, dtype=torch.long, device=self.device)
        self.num_slots = num_slots
        self.capacity = capacity
        self.num_active = 0

    @staticmethod
    def bytes_per_token(model: PreTrainedModel) -> int:
        """Memory that one token's keys and values take over all layers."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize

    @torch.inference_mode()
    def prefill(self, tokens: Seq[int]) -> Prefill:
        """Runs a prompt once; its result can be admitted to any number of slots."""
        recorder = _PrefillCache()
        ids = torch.tensor([tuple(tokens)], device=self.device)
        hidden = self._body(input_ids=ids, cache=recorder, use_cache=True).last_hidden_state
        return Prefill(recorder.keys, recorder.values, hidden[0, -1])

    @torch.inference_mode()
    def admit(self, prompt: Prefill) -> int:
        """Copies a prompt into a free slot and returns the slot."""
        slot = self.num_active
        self._cache.write_prompt(slot, prompt)
        self._lengths[slot] = prompt.num_tokens
        self.num_active += 1
        return slot

    @torch.inference_mode()
    def release(self, slot: int) -> int:
        """Frees a slot by moving the last active one into it; returns the slot that moved (`slot` itself if none)."""
        last = self.num_active - 1
        if slot != last:
            self._cache.move(last, slot)
            self._lengths[slot] = self._lengths[last]
        self.num_active = last
        return last

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token [num_active] to each active slot; returns the hidden states [num_active, d] that predict
        the next ones."""
        n = self.num_active
        lengths = self._lengths[:n]
        width = int(lengths.max()) + 1
        self._cache.begin_step(lengths, width)
        out = self._body(
            input_ids=tokens[:, None],
            position_ids=lengths[:, None],
            attention_mask=self._masks(lengths, width),
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state
        self._lengths[:n] += 1
        return out[:, -1]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary] in fp32."""
        logits: Tensor = self._output(hidden)
        return logits.float()

    def _masks(self, lengths: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        index = torch.arange(width, device=self.device)
        is_visible = index[None] <= lengths[:, None]
        dtype = self.model.dtype
        masks = {"full_attention": is_visible}
        window = self._layer_kinds.window
        if window:
            masks["sliding_attention"] = is_visible & (lengths[:, None] - index[None] < window)
        additive = {
            kind: torch.zeros(mask.shape, dtype=dtype, device=self.device).masked_fill_(~mask, torch.finfo(dtype).min)[
                :, None, None
            ]
            for kind, mask in masks.items()
        }
        return self._layer_kinds.select(additive)


class _PrefillCache(Cache):
    """Keeps what one forward pass of a whole prompt computed."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys.append(key_states[0])
        self.values.append(value_states[0])
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


class _SlotCache(Cache):
    """One buffer per layer for keys and one for values, [slots, kv_heads, capacity, head_dim], updated in place."""

    def __init__(self, num_slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self._num_slots = num_slots
        self._capacity = capacity
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = torch.arange(num_slots, device=device)
        self._lengths = torch.zeros(0, dtype=torch.long, device=device)
        self._width = 0

    def write_prompt(self, slot: int, prompt: Prefill) -> None:
        if not self._keys:
            for buffers, like in ((self._keys, prompt.keys), (self._values, prompt.values)):
                buffers.extend(x.new_zeros(self._num_slots, x.shape[0], self._capacity, x.shape[2]) for x in like)
        for buffers, prompts in ((self._keys, prompt.keys), (self._values, prompt.values)):
            for buffer, states in zip(buffers, prompts, strict=True):
                buffer[slot, :, : prompt.num_tokens] = states

    def move(self, source: int, target: int) -> None:
        for buffer in (*self._keys, *self._values):
            buffer[target] = buffer[source]

    def begin_step(self, lengths: Tensor, width: int) -> None:
        self._lengths = lengths
        self._width = width

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        n = key_states.shape[0]
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows[:n], :, self._lengths] = key_states[:, :, 0]
        values[self._rows[:n], :, self._lengths] = value_states[:, :, 0]
        return keys[:n, :, : self._width], values[:n, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._width, 0
