"""Attention over a forest on a GPU: FlexAttention, which skips each block of 128 × 128 pairs of which none is seen.

transformers compiles the kernel once, and once more for lengths that vary. Not measured on a GPU; its forward pass runs
on CPUs too and is tested there, where FlexAttention has no backward pass.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from lydian.data.forest import Forest


def block_mask(forest: Forest, num_before: int, window: int | None) -> BlockMask:
    """Which blocks of pairs (query i, key j) of a forest's rows are seen: those with j ≤ i < reach[j] in them.

    num_before  keys in front of every row (prefix tuning), which all of its tokens see
    window      tokens that a layer looks back, the query itself included; None: all
    """
    rows, length = forest.tokens.shape
    before = torch.arange(-num_before, 0, device=forest.positions.device).expand(rows, -1)
    positions = torch.cat([before, forest.positions], dim=1)
    reach = functional.pad(forest.reach, (num_before, 0), value=length)

    span = window or num_before + length + 1  # more than any distance
    return create_block_mask(
        lambda row, _head, i, j: (
            (j - num_before <= i) & (i < reach[row, j]) & (positions[row, num_before + i] - positions[row, j] < span)
        ),
        rows,
        None,
        length,
        num_before + length,
        device=str(forest.tokens.device),
    )
