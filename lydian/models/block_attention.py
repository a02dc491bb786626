"""Attention over a forest on a GPU: FlexAttention, which skips each block of 128 × 128 pairs of which none is seen.

transformers compiles its kernels when they are first needed: with gradients and without, for one length and then for
lengths that vary. Not measured on a GPU. The forward pass runs on CPUs too and is tested there, where FlexAttention has
no backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask

from lydian.data.forest import Forest


def block_mask(forest: Forest, num_before: int, window: int | None) -> BlockMask:
    """Which blocks of pairs (query i, key j) of a forest's rows are seen: those with j ≤ i < reach[j] in them.

    num_before  keys in front of every row (prefix tuning), which all of its tokens see
    window      tokens that a layer looks back, the query itself included; None: all
    """
    rows, length = forest.tokens.shape
    reach = functional.pad(forest.reach, (num_before, 0), value=length)
    seen: list[Callable[..., Tensor]] = [lambda row, _head, i, j: (j - num_before <= i) & (i < reach[row, j])]
    if window is not None:
        before = torch.arange(-num_before, 0, device=forest.positions.device).expand(rows, -1)
        positions = torch.cat([before, forest.positions], dim=1)
        seen.append(lambda row, _head, i, j: positions[row, num_before + i] - positions[row, j] < window)
    device = str(forest.tokens.device)
    return create_block_mask(and_masks(*seen), rows, None, length, num_before + length, device=device)


def allow_many_shapes() -> None:
    """Lets FlexAttention be compiled for as many kinds of shapes as a run has, one model after another; beyond torch's
    limit of 8 it would compute all pairs."""
    from torch._dynamo import config  # takes a second to import

    config.recompile_limit = max(config.recompile_limit, 64)
