"""Step-by-step decoding of many completions at once: slots of one preallocated key/value cache.

A slot holds one running completion. All keys and values live in one buffer per layer, written in place; each slot has
its own length, so completions of different prompts run side by side without padding, and a slot that is done is filled
by moving the last running one into its place. Prompts are computed in chunks of bounded size. The completions of one
prompt read its keys and values where they lie, if the body can do that, or else copy them from a slot that holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lydian.models.cache import SharedPrompts, SlotCache
from lydian.models.llama_decode import LlamaBody, is_llama_like
from lydian.models.packed import freeze_linears
from lydian.models.policy import sliding_layers

CausalLM = PreTrainedModel
"""A transformers causal language model, for those who may not import transformers."""

PREFILL_TOKENS = 2048
"""Tokens of prompts that are computed at a time: enough to use the processor well, few enough to bound memory."""

MOST_KEYS = 8
"""Keys that prompts behind a long prefix may read for each token that is computed at a time."""


@runtime_checkable
class Body(Protocol):
    """A causal language model that is never trained, as a decoder sees it.

    names           the parameters that `load` needs
    device, dtype, config  the model's
    cache_dtype     of keys, values and masks
    shares_prompts  whether `hidden` takes `SharedPrompts` as its cache
    """

    names: Set[str]
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    shares_prompts: bool

    def reserve(self, num_positions: int) -> None:
        """Positions will stay below this number."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of all parameters, by name."""
        ...

    def hidden(self, tokens: Tensor, positions: Tensor, mask: Any, cache: SlotCache | SharedPrompts) -> Tensor:
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

    shares_prompts = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: PreTrainedConfig = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.cache_dtype: torch.dtype = model.dtype
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

    def hidden(self, tokens: Tensor, positions: Tensor, mask: Any, cache: SlotCache | SharedPrompts) -> Tensor:
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

    num_prompts     prompts that are held once for all of their completions, of up to `prompt_tokens` tokens each; 0:
                    each completion holds its own copy. Only for a body that shares prompts
    prefill_tokens  tokens of prompts that are computed at a time, reading at most `MOST_KEYS` keys each; they bound the
                    memory that a prompt needs while it is computed and change its numbers only by rounding
    prefix          keys and values [layers, 2, kv_heads, P, head_dim] in front of every prompt (prefix tuning), which
                    `capacity` does not count
    common          tokens that every prompt begins with and goes on after: computed once, and copied to each prompt
    """

    def __init__(
        self,
        body: Body,
        *,
        num_slots: int,
        capacity: int,
        num_prompts: int = 0,
        prompt_tokens: int = 0,
        prefill_tokens: int = PREFILL_TOKENS,
        prefix: Tensor | None = None,
        common: Seq[int] = (),
    ) -> None:
        self._body = body
        self._kinds = sliding_layers(body.config.get_text_config())
        self._prefill_tokens = prefill_tokens
        self._prefix = [] if prefix is None else [(keys, values) for keys, values in prefix]
        self._num_before = before = 0 if prefix is None else prefix.shape[3]
        body.reserve(before + capacity)
        if num_prompts:
            self._prompts = SlotCache(num_prompts, before + prompt_tokens, body.device)
            self._slots = SlotCache(num_slots, capacity - prompt_tokens, body.device)
        else:
            self._prompts = self._slots = SlotCache(num_slots, before + capacity, body.device)
        self._shares = num_prompts > 0
        self._owners: list[int] = []  # of each slot, the row of its prompt
        self._sharing: SharedPrompts | None = None  # as the owners are now
        self.num_slots = num_slots
        self.capacity = capacity
        self._num_common = 0
        if common:
            self._put_in_front(common)

    @property
    def num_active(self) -> int:
        return self._slots.num

    @torch.inference_mode()
    def prefill(self, prompts: Seq[Seq[int]]) -> Tensor:
        """Begins a completion of each prompt in the next free slots, in order; returns the hidden states [n, d] that
        predict their first tokens."""
        parts, rest = [], [prompt[self._num_common :] for prompt in prompts]
        while rest:
            num = 1
            while num < len(rest) and self._fits(num + 1, max(map(len, rest[: num + 1]))):
                num += 1
            parts.append(self._prefill(rest[:num]))
            rest = rest[num:]
        return torch.cat(parts)

    @torch.inference_mode()
    def fork(self, slot: int, num_tokens: int, num: int) -> None:
        """Begins `num` completions more, in the next free slots, of an active one's prompt of so many tokens."""
        if self._shares:
            self._slots.add([0] * num)
            self._own(self._owners + [self._owners[slot]] * num)
        else:
            self._slots.fork(slot, self._num_before - self._num_common + num_tokens, num)

    @torch.inference_mode()
    def release(self, slot: int) -> int:
        """Frees a slot by moving the last active one into it; returns the slot that moved (`slot` itself if none)."""
        last = self._slots.remove(slot)
        if self._shares:
            owners, prompt = self._owners[:last], self._owners[slot]
            if slot != last:
                owners[slot] = self._owners[last]
            if prompt not in owners:
                moved = self._prompts.remove(prompt)
                owners = [prompt if owner == moved else owner for owner in owners]
            self._own(owners)
        return last

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Appends one token [num_active] to each active slot; returns the hidden states [num_active, d] that predict
        the next ones."""
        n = self.num_active
        index = self._slots.lengths[:n, None]
        width = self._slots.width + 1
        if self._shares:
            self._sharing = cache = self._sharing or SharedPrompts(self._prompts, self._slots, self._owners)
            before = self._prompts.lengths[cache.owners, None]
            is_hidden = torch.cat([self._after(before - 1, self._prompts.width), self._after(index, width)], dim=-1)
            self._slots.begin(0, index, width)
            hidden = self._body.hidden(tokens[:, None], index + before, self._additive(is_hidden), cache)
        else:
            hidden = self._hidden(tokens[:, None], index, first=0, width=width)
        self._slots.grow()
        return hidden[:, 0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [n, vocabulary] in the body's type."""
        return self._body.logits(hidden)

    def _prefill(self, prompts: Seq[Seq[int]]) -> Tensor:
        """Prompts side by side, padded at the end, where no token before looks."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._body.device)
        rows = [torch.tensor(tuple(prompt), device=self._body.device) for prompt in prompts]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        longest = tokens.shape[1]
        before, first = self._num_before, self._prompts.num
        self._put_prefix(len(prompts))
        last = None
        for start in range(0, longest, self._prefill_tokens):
            chunk = tokens[:, start : start + self._prefill_tokens]
            positions = before + torch.arange(start, start + chunk.shape[1], device=self._body.device)[None]
            hidden = self._hidden(chunk, positions, first=first, width=before + start + chunk.shape[1])
            index = (lengths - 1 - start).clamp(0, chunk.shape[1] - 1)
            ends = hidden[torch.arange(len(prompts), device=index.device), index]
            last = ends if last is None else torch.where((lengths > start)[:, None], ends, last)
        assert last is not None  # no prompt is empty
        self._prompts.add([before + len(prompt) for prompt in prompts])
        if self._shares:
            self._slots.add([0] * len(prompts))
            self._own([*self._owners, *range(first, self._prompts.num)])
        return last

    def _fits(self, num: int, longest: int) -> bool:
        """Whether so many prompts are computed at a time: they are padded to the longest, and all read the prefix."""
        num_keys = num * (self._num_before + longest)
        return num * longest <= self._prefill_tokens and num_keys <= MOST_KEYS * self._prefill_tokens

    @torch.inference_mode()
    def _put_in_front(self, tokens: Seq[int]) -> None:
        """Computes what all prompts begin with; from now on its keys and values are part of the prefix."""
        self._prefill([tokens])
        self._prefix = self._prompts.states(0)
        self._num_before += len(tokens)
        self._num_common = len(tokens)
        self.release(0)

    def _own(self, owners: list[int]) -> None:
        self._owners, self._sharing = owners, None

    def _put_prefix(self, num: int) -> None:
        """Writes the prefix into the first positions of the next `num` prompts."""
        if self._prefix:
            positions = torch.arange(self._num_before, device=self._body.device).expand(num, -1)
            self._prompts.begin(self._prompts.num, positions, self._num_before)
            for index, states in enumerate(self._prefix):
                keys, values = (
                    part.to(self._body.device, self._body.cache_dtype).expand(num, *part.shape) for part in states
                )
                self._prompts.update(keys, values, index)

    def _hidden(self, tokens: Tensor, positions: Tensor, *, first: int, width: int) -> Tensor:
        """Of tokens whose whole past is in one row each."""
        mask = self._mask(positions, width)
        positions = positions.expand(tokens.shape)
        self._prompts.begin(first, positions, width)
        return self._body.hidden(tokens, positions, mask, self._prompts)

    def _mask(self, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """A query sees the keys of its own row up to its own position, in sliding layers only the last of them."""
        is_after = self._after(positions, width)
        masks = {"full_attention": self._additive(is_after)}
        if self._kinds.window:
            is_before = ~self._after(positions - self._kinds.window, width)
            masks["sliding_attention"] = self._additive(is_after | is_before)
        return self._kinds.select(masks)

    def _after(self, positions: Tensor, width: int) -> Tensor:
        """Which of the keys 0 … width − 1 come after each position."""
        return torch.arange(width, device=positions.device) > positions[..., None]

    def _additive(self, is_hidden: Tensor) -> Tensor:
        dtype = self._body.cache_dtype
        mask = torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device)
        return mask.masked_fill_(is_hidden, torch.finfo(dtype).min)[:, None]
