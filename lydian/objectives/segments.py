"""Sums and means over the tokens of a sequence, the sequences of a pair, the members of a group: flat, no padding."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def segment_sum(values: Float[Tensor, " n"], index: Int[Tensor, " n"], count: int) -> Float[Tensor, " s"]:
    """Σ of the values of each segment, [count]; 0 where a segment has none. Differentiable.

    values  [n]
    index   [n] in [0, count): the segment of each value, in any order
    count   number of segments

    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]), 3).tolist()
    [5.0, 2.0, 0.0]
    """
    return values.new_zeros(count).index_add(0, index, values)


def segment_mean(values: Float[Tensor, " n"], index: Int[Tensor, " n"], count: int) -> Float[Tensor, " s"]:
    """Mean of the values of each segment, [count]; 0 where a segment has none. Differentiable.

    >>> segment_mean(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]), 3).tolist()
    [2.5, 2.0, 0.0]
    """
    return segment_sum(values, index, count) / segment_size(index, count).clamp(min=1)


def segment_size(index: Int[Tensor, " n"], count: int) -> Int[Tensor, " s"]:
    """Number of entries of each segment, [count].

    >>> segment_size(torch.tensor([0, 1, 0]), 3).tolist()
    [2, 1, 0]
    """
    return torch.bincount(index, minlength=count)


def place_in_segment(index: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many earlier entries belong to the same segment: the place of a token in its sequence, from 0.

    >>> place_in_segment(torch.tensor([4, 7, 4, 4, 7])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = torch.argsort(index, stable=True)
    ordered = index[order]
    position = torch.arange(len(index), device=index.device)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    start = torch.where(is_first, position, torch.zeros_like(position)).cummax(0).values
    return torch.empty_like(index).scatter_(0, order, position - start)
