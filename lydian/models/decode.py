"""Step-by-step decoding of many completions at once: slots of one preallocated key/value cache.

A slot holds one running completion. All keys and values live in one buffer per layer, written in place; each slot has
its own length, so completions of different prompts run side by side without padding, and a slot that is done is filled
by moving the last running one into its place. Prompts are written into slots in chunks of bounded size; further
completions of a prompt copy its keys and values from a slot that holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from lydian.models.llama_decode import LlamaBody, is_llama_like
from lydian.models.packed import freeze_linears
from lydian.models.policy import sliding_layers

CausalLM = PreTrainedModel
"""A transformers causal language model, for those who may not import transformers."""

PREFILL_TOKENS = 2048
"""Tokens of prompts that are computed at a time: enough to use the processor well, few enough to bound memory."""


@runtime_checkable
class Body(Protocol):
    """A causal language model that is never trained, as a decoder sees it.

    names   the parameters that `load` needs
    device, dtype, config  the model's
    """

    names: Set[str]
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype

    def reserve(self, num_positions: int) -> None:
        """Positions will stay below this number."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of all parameters, by name."""
        ...

    def hidden(self, tokens: Tensor, positions: Tensor, mask: Any, cache: SlotCache) -> Tensor:
        """Last hidden states [n, t, d] of tokens [n, t] at positions [n, t].

        mask   additive, [n or 1, 1, t, keys], or a mapping of such by kind of layer
        cache  where each layer's keys and values go, and where those of all `keys` positions come from
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary] of hidden states [n, d]."""
        ...


def body_of(model: PreTrainedModel) -> Body:
    """The fastest body there is for a model, whose weights it takes over."""
    return LlamaBody(model) if is_llama_like(model) else TransformersBody(model)


class TransformersBody:
    """Any transformers causal language model, computed by its own modules."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: PreTrainedConfig = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._model = model
        self._linears = freeze_linears(model)
        self._parameters = dict(model.named_parameters())
        self.names: Set[str] = self._parameters.keys() | {name for linear in self._linears for name in linear.names}

    def reserve(self, num_positions: int) -> None:
        """Nothing to prepare."""

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of all parameters, by name."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[name])
        for linear in self._linears:
            linear.load(tensors)

    def hidden(self, tokens: Tensor, positions: Tensor, mask: Any, cache: SlotCache) -> Tensor:
        """Last hidden states; see `Body`."""
        hidden: Tensor = self._model.base_model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
        ).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary]."""
        logits: Tensor = self._model.get_output_embeddings()(hidden)
        return logits


class Decoder:
    """A body with a cache of `num_slots` completions of up to `capacity` tokens each, prompts included.

    prefill_tokens  tokens of prompts that are computed at a time; they bound the memory that a prompt needs while it
                    is computed and change its numbers only by rounding
    prefix          keys and values [layers, 2, kv_heads, P, head_dim] in front of every prompt (prefix tuning), which
                    `capacity` does not count
    """

    def __init__(
        self,
        body: Body,
        *,
        num_slots: int,
        capacity: int,
        prefill_tokens: int = PREFILL_TOKENS,
        prefix: Tensor | None = None,
    ) -> None:
        self._body = body
        self._kinds = sliding_layers(body.config.get_text_config())
        self._prefill_tokens = prefill_tokens
        self._prefix = prefix
        self._num_before = 0 if prefix is None else prefix.shape[3]
        body.reserve(self._num_before + capacity)
        self._cache = SlotCache(num_slots, self._num_before + capacity, body.device)
        self._lengths = torch.zeros(num_slots, dtype=torch.long, device=body.device)
        self._widths = [0] * num_slots  # the lengths again, where reading them does not wait for the device
        self.num_slots = num_slots
        self.capacity = capacity
        self.num_active = 0

    @torch.inference_mode()
    def prefill(self, prompts: Seq[Seq[int]]) -> Tensor:
        """Runs prompts into the next free slots, in order; returns the hidden states [n, d] that predict next."""
        parts, rest = [], list(prompts)
        while rest:
            num = 1
            while num < len(rest) and (num + 1) * max(map(len, rest[: num + 1])) <= self._prefill_tokens:
                num += 1
            parts.append(self._prefill(rest[:num]))
            rest = rest[num:]
        return torch.cat(parts)

    @torch.inference_mode()
    def fork(self, slot: int, num_tokens: int, num: int) -> None:
        """Begins `num` completions in the next free slots with the first tokens of an active one."""
        first, last = self.num_active, self.num_active + num
        num_tokens += self._num_before
        self._cache.copy(slot, slice(first, last), num_tokens)
        self._activate([num_tokens] * num)

    @torch.inference_mode()
    def release(self, slot: int) -> int:
        """Frees a slot by moving the last active one into it; returns the slot that moved (`slot` itself if none)."""
        last = self.num_active - 1
        if slot != last:
            self._cache.copy(last, slice(slot, slot + 1), self._widths[last])
            self._lengths[slot] = self._widths[slot] = self._widths[last]
        self.num_active = last
        return last

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token [num_active] to each active slot; returns the hidden states [num_active, d] that predict
        the next ones."""
        n = self.num_active
        width = max(self._widths[:n]) + 1
        hidden = self._hidden(tokens[:, None], self._lengths[:n, None], first=0, width=width)
        self._lengths[:n] += 1
        self._widths[:n] = [length + 1 for length in self._widths[:n]]
        return hidden[:, 0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary] in fp32."""
        return self._body.logits(hidden).float()

    def _prefill(self, prompts: Seq[Seq[int]]) -> Tensor:
        """Prompts side by side, padded at the end, where no token before looks."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._body.device)
        rows = [torch.tensor(tuple(prompt), device=self._body.device) for prompt in prompts]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        longest = tokens.shape[1]
        before = self._num_before
        self._put_prefix(len(prompts))
        last = None
        for start in range(0, longest, self._prefill_tokens):
            chunk = tokens[:, start : start + self._prefill_tokens]
            positions = before + torch.arange(start, start + chunk.shape[1], device=self._body.device)[None]
            hidden = self._hidden(chunk, positions, first=self.num_active, width=before + start + chunk.shape[1])
            index = (lengths - 1 - start).clamp(0, chunk.shape[1] - 1)
            ends = hidden[torch.arange(len(prompts), device=index.device), index]
            last = ends if last is None else torch.where((lengths > start)[:, None], ends, last)
        assert last is not None  # no prompt is empty
        self._activate([before + len(prompt) for prompt in prompts])
        return last

    def _put_prefix(self, num: int) -> None:
        """Writes the prefix into the first positions of the next free slots."""
        if self._prefix is not None:
            positions = torch.arange(self._num_before, device=self._body.device).expand(num, -1)
            self._cache.begin(self.num_active, positions, self._num_before)
            for index, states in enumerate(self._prefix.to(self._body.device, self._body.dtype)):
                keys, values = states[:, None].expand(-1, num, -1, -1, -1)
                self._cache.update(keys, values, index)

    def _activate(self, lengths: list[int]) -> None:
        slots = slice(self.num_active, self.num_active + len(lengths))
        self._lengths[slots] = torch.tensor(lengths, device=self._lengths.device)
        self._widths[slots] = lengths
        self.num_active = slots.stop

    def _hidden(self, tokens: Tensor, positions: Tensor, *, first: int, width: int) -> Tensor:
        mask = self._mask(positions, width)
        positions = positions.expand(tokens.shape)
        self._cache.begin(first, positions, width)
        return self._body.hidden(tokens, positions, mask, self._cache)

    def _mask(self, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """A query sees the keys of its own slot up to its own position, in sliding layers only the last of them."""
        distance = positions[:, :, None] - torch.arange(width, device=positions.device)
        masks = {"full_attention": self._additive(distance < 0)}
        if self._kinds.window:
            masks["sliding_attention"] = self._additive((distance < 0) | (distance >= self._kinds.window))
        return self._kinds.select(masks)

    def _additive(self, is_hidden: Tensor) -> Tensor:
        dtype = self._body.dtype
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device)
        return mask.masked_fill_(is_hidden, torch.finfo(dtype).min)[:, None]


class SlotCache(Cache):
    """One buffer per layer for keys and one for values, [slots, kv_heads, capacity, head_dim], updated in place.

    A transformers cache, so that any of its models writes here.
    """

    def __init__(self, num_slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self._num_slots = num_slots
        self._capacity = capacity
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._first = 0
        self._positions = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._width = 0
        self._places: dict[int, Tensor] = {}

    def begin(self, first: int, positions: Tensor, width: int) -> None:
        """The next pass writes at positions [n, t] of the n slots from `first` on and reads positions below `width`."""
        self._first, self._positions, self._width = first, positions, width
        self._places = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [n, kv_heads, t, head_dim]; returns all that is there to read, [n, kv_heads, width, head_dim]."""
        if layer_idx == len(self._buffers):
            self._buffers.append((self._buffer(key_states), self._buffer(value_states)))
        keys, values = self._buffers[layer_idx]
        slots = slice(self._first, self._first + len(key_states))
        for buffer, states in ((keys, key_states), (values, value_states)):
            rows = states.transpose(1, 2).reshape(-1, states.shape[-1])
            buffer.view(-1, buffer.shape[-1]).index_copy_(0, self._place(buffer.shape[1]), rows)
        return keys[slots, :, : self._width], values[slots, :, : self._width]

    def copy(self, source: int, targets: slice, num_tokens: int) -> None:
        """Copies a slot's first tokens to other slots."""
        for buffers in self._buffers:
            for buffer in buffers:
                buffer[targets, :, :num_tokens] = buffer[source, :, :num_tokens]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the ones that are being computed."""
        return self._width - self._positions.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys that are read, and the first of them."""
        return self._width, 0

    def _buffer(self, states: Tensor) -> Tensor:
        # Zeros, not garbage: what a mask hides is multiplied by 0, and 0 · NaN is NaN.
        return states.new_zeros(self._num_slots, states.shape[1], self._capacity, states.shape[3])

    def _place(self, num_heads: int) -> Tensor:
        """Where (row, token, head) goes in a buffer seen as a list of head vectors, [n · t · num_heads]."""
        if num_heads not in self._places:
            slots = torch.arange(self._first, self._first + len(self._positions), device=self._positions.device)
            heads = torch.arange(num_heads, device=self._positions.device)
            first = (slots[:, None] * num_heads + heads) * self._capacity
            self._places[num_heads] = (first[:, None] + self._positions[:, :, None]).flatten()
        return self._places[num_heads]
