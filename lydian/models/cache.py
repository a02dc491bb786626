"""Keys and values of running completions, and of prompts that several of them share."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache


class SlotCache(Cache):
    """Rows of keys and values, [rows, kv_heads, capacity, head_dim] a layer, updated in place.

    A transformers cache, so that any of its models writes here.

    num      rows in use, the first ones
    lengths  tokens that each row holds, [rows]
    """

    def __init__(self, num_rows: int, capacity: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self.num = 0
        self.lengths = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._widths = [0] * num_rows  # the lengths again, where reading them does not wait for the device
        self._capacity = capacity
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._first = 0
        self._positions = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._width = 0
        self._places: dict[int, Tensor] = {}

    @property
    def width(self) -> int:
        """Tokens of the longest row in use."""
        return max(self._widths[: self.num], default=0)

    def add(self, lengths: Seq[int]) -> None:
        """Takes the next free rows, which hold so many tokens already."""
        rows = slice(self.num, self.num + len(lengths))
        self.lengths[rows] = torch.tensor(lengths, device=self.lengths.device)
        self._widths[rows] = lengths
        self.num = rows.stop

    def fork(self, row: int, num_tokens: int, num: int) -> None:
        """Takes the next `num` free rows and copies a row's first tokens there."""
        self._copy(row, slice(self.num, self.num + num), num_tokens)
        self.add([num_tokens] * num)

    def remove(self, row: int) -> int:
        """Frees a row by moving the last one in use into it; returns the row that moved."""
        last = self.num - 1
        if row != last:
            self._copy(last, slice(row, row + 1), self._widths[last])
            self.lengths[row] = self._widths[row] = self._widths[last]
        self.num = last
        return last

    def grow(self) -> None:
        """Each row in use has one token more."""
        self.lengths[: self.num] += 1
        self._widths[: self.num] = [width + 1 for width in self._widths[: self.num]]

    def begin(self, first: int, positions: Tensor, width: int) -> None:
        """The next pass writes at positions [n, t] of the n rows from `first` on and reads positions below `width`."""
        self._first, self._positions, self._width = first, positions, width
        self._places = {}

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, layer: int) -> Tensor:
        """Attention [n, heads, t, head_dim] of queries over what their rows hold, their own keys and values written
        first; mask [n or 1, 1, t, width] is added to the scores."""
        seen = self.update(keys, values, layer)
        return functional.scaled_dot_product_attention(queries, *seen, attn_mask=mask, enable_gqa=True)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [n, kv_heads, t, head_dim]; returns all that is there to read, [n, kv_heads, width, head_dim]."""
        if layer_idx == len(self._buffers):
            self._buffers.append((self._buffer(key_states), self._buffer(value_states)))
        keys, values = self._buffers[layer_idx]
        for buffer, states in ((keys, key_states), (values, value_states)):
            rows = states.transpose(1, 2).reshape(-1, states.shape[-1])
            buffer.view(-1, buffer.shape[-1]).index_copy_(0, self._place(buffer.shape[1]), rows)
        written = slice(self._first, self._first + len(key_states))
        return keys[written, :, : self._width], values[written, :, : self._width]

    def states(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of the keys and values of one row, [kv_heads, tokens, head_dim] each, layer by layer."""
        num = self._widths[row]
        return [(keys[row, :, :num].clone(), values[row, :, :num].clone()) for keys, values in self._buffers]

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the rows in use, [num, kv_heads, width, head_dim]."""
        keys, values = self._buffers[layer]
        return keys[: self.num, :, : self.width], values[: self.num, :, : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the ones that are being computed."""
        return self._width - self._positions.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys that are read, and the first of them."""
        return self._width, 0

    def _copy(self, source: int, targets: slice, num_tokens: int) -> None:
        for buffers in self._buffers:
            for buffer in buffers:
                buffer[targets, :, :num_tokens] = buffer[source, :, :num_tokens]

    def _buffer(self, states: Tensor) -> Tensor:
        # Zeros, not garbage: what a mask hides is multiplied by 0, and 0 · NaN is NaN.
        return states.new_zeros(len(self.lengths), states.shape[1], self._capacity, states.shape[3])

    def _place(self, num_heads: int) -> Tensor:
        """Where (row, token, head) goes in a buffer seen as a list of head vectors, [n · t · num_heads]."""
        if num_heads not in self._places:
            rows = torch.arange(self._first, self._first + len(self._positions), device=self._positions.device)
            heads = torch.arange(num_heads, device=self._positions.device)
            first = (rows[:, None] * num_heads + heads) * self._capacity
            self._places[num_heads] = (first[:, None] + self._positions[:, :, None]).flatten()
        return self._places[num_heads]


class SharedPrompts:
    """One step of completions whose prompts are held once: all completions of a prompt read it in one matrix product.

    The scores of prompt and own tokens go through one softmax, so the result is that of attention over both.

    prompts  a row a prompt; own  a row a completion, where the step's keys and values go
    owners   the row of each completion's prompt
    """

    def __init__(self, prompts: SlotCache, own: SlotCache, owners: Seq[int]) -> None:
        self._prompts = prompts
        self._own = own
        self.owners = torch.tensor(owners, device=own.lengths.device)
        self._indices: tuple[Tensor, Tensor] | None = None

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, layer: int) -> Tensor:
        """Attention [n, heads, 1, head_dim] of one query a completion; mask [n, 1, 1, prompt + own tokens]."""
        n, heads, _, width = queries.shape
        kv_heads = keys.shape[1]
        prompt_keys, prompt_values = (held.flatten(0, 1) for held in self._prompts.held(layer))
        own_keys, own_values = (held.flatten(0, 1) for held in self._own.update(keys, values, layer))
        num_shared, by_prompt, by_completion = prompt_keys.shape[1], *self._gathers(kv_heads)

        def read(states: Tensor, shared: Tensor) -> Tensor:
            """[n · kv_heads, r, x] times what the prompts hold: those of one prompt and key head in one product."""
            together = states.index_select(0, by_prompt).view(len(shared), -1, states.shape[2])
            result = torch.bmm(together, shared)
            return result.view(-1, states.shape[1], result.shape[2]).index_select(0, by_completion)

        queries = queries.reshape(n * kv_heads, -1, width) * width**-0.5
        scores = torch.cat([read(queries, prompt_keys.mT), torch.bmm(queries, own_keys.mT)], dim=-1)
        weights = scores.view(n, heads, 1, -1).add_(mask).softmax(-1).view_as(scores)
        of_prompt = read(weights[..., :num_shared], prompt_values)
        return torch.baddbmm(of_prompt, weights[..., num_shared:], own_values).view(n, heads, 1, width)

    def _gathers(self, kv_heads: int) -> tuple[Tensor, Tensor]:
        """Of (completion, key head) pairs: those of each (prompt, key head), padded with any, [prompts · kv_heads · m];
        and where each pair is among them, [n · kv_heads]."""
        if self._indices is None:
            owners, device = self.owners, self.owners.device
            order = owners.argsort(stable=True)
            most = int(torch.bincount(owners).max())
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=device) % most  # a prompt's completions are consecutive there
            head = torch.arange(kv_heads, device=device)
            places = (owners[:, None] * kv_heads + head) * most + rank[:, None]
            members = torch.zeros(self._prompts.num * kv_heads * most, dtype=torch.long, device=device)
            members[places.flatten()] = torch.arange(len(order) * kv_heads, device=device)
            self._indices = members, places.flatten()
        return self._indices
