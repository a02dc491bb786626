"""Attention over a forest at the cost of what its tokens see: each branch reads its ancestors and itself, nothing else.

A dense mask over a row pays for every pair of tokens in it; in a row of eight completions of one prompt three quarters
of the pairs are hidden. Here a row is cut into branches, each attending to the path above it and causally to itself,
and branches of similar shape are computed together. transformers' layers hand over queries, keys and values as they
always do; the mask that they are given says how to attend: a `TreeMask` as above, a block mask by FlexAttention, a
dense one by SDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lydian.data.forest import Forest
from lydian.models.block_attention import allow_many_shapes, block_mask
from lydian.objectives.precision import full_precision

IMPLEMENTATION = "lydian_tree"
"""Its name among transformers' attention implementations."""

MOST_WASTE = 1.25
"""Branches are computed together while padding them costs no more than this factor."""

FREE_PAIRS = 1 << 15
"""Pairs of tokens that cost as much as calling the kernel once more: small branches are computed together anyway."""

MOST_OWN = 256
"""Longer branches below a path are cut: of a branch's own pairs, half are hidden and computed all the same."""


Mask = Tensor | BlockMask
MaskOf = Callable[[Forest, int, int | None], Mask]
"""Makes the mask of a forest with so many keys in front of every row, for layers that look so far back or at all."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens start … end − 1 of one row, of which each is the child of the one before; `path`: the first one's
    ancestors, root first."""

    row: int
    start: int
    end: int
    path: Int[Tensor, " p"]

    @property
    def size(self) -> tuple[int, int]:
        """Tokens of the path and tokens of its own."""
        return len(self.path), self.end - self.start


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Branches that are computed together, padded: indices into the flat tokens of all rows.

    queries  [b, l]; keys [b, p + l]: the paths, then the queries' own
    hidden   [b, 1, l, p + l], 0 or the lowest number; None where causal order alone decides
    """

    queries: Int[Tensor, "b l"]
    keys: Int[Tensor, "b k"]
    hidden: Float[Tensor, "b 1 l k"] | None


class TreeMask(torch.Tensor):
    """What stands in for a mask: the bundles to compute, and where each token's result is among theirs.

    transformers hands 4-D masks on to each layer's attention as they are. A layer that reads this one as numbers gets
    NaN, so that no model can use it wrongly and go unnoticed.
    """

    bundles: tuple[_Bundle, ...]
    places: Int[Tensor, "rows length"]

    @classmethod
    def of(cls, forest: Forest, num_before: int = 0, window: int | None = None) -> TreeMask:
        """The mask of a forest.

        num_before  keys in front of every row (prefix tuning), which all of its tokens see
        window      tokens that a layer looks back, the query itself included; None: all
        """
        mask: TreeMask = torch.full((1, 1, 1, 1), torch.nan).as_subclass(cls)
        rows, length = forest.tokens.shape
        mask.bundles = tuple(_bundle(some, length, window, num_before) for some in _bundles(branches(forest)))
        places = torch.zeros(rows * length, dtype=torch.long)  # padding: any result will do
        order = torch.cat([torch.where(b.queries < 0, rows * length, b.queries).flatten() for b in mask.bundles])
        is_token = order < rows * length
        places[order[is_token]] = is_token.nonzero().squeeze(1)
        mask.places = places.view(rows, length)
        return mask


SPARSE_MASKS: dict[str, dict[str, MaskOf]] = {"cpu": {"trees": TreeMask.of}, "cuda": {"blocks": block_mask}}
"""The masks with which a type of device pays for what tokens see, by name."""


def sparse_masks(model: PreTrainedModel) -> dict[str, MaskOf]:
    """Those of `SPARSE_MASKS` for a model, whose layers are made to accept them; none where it does not use SDPA.

    Dense masks are computed as before.
    """
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(IMPLEMENTATION)
    if model.device.type == "cuda":
        allow_many_shapes()
    return SPARSE_MASKS.get(model.device.type, {}) if model.config._attn_implementation == IMPLEMENTATION else {}


def attend(
    module: nn.Module,
    query: Float[Tensor, "rows heads length d"],
    key: Float[Tensor, "rows kv_heads keys d"],
    value: Float[Tensor, "rows kv_heads keys d"],
    attention_mask: Mask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "rows length heads d"], Tensor | None]:
    """softmax(q kᵀ · scaling) v over what each token sees: an attention function of transformers. In fp32 at least
    over trees.

    Raises ValueError for what attention over trees does not compute: soft caps, sinks, biases of positions.
    """
    if isinstance(attention_mask, BlockMask):
        return flex_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options
        )
    if not isinstance(attention_mask, TreeMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
    unknown = [name for name in ("softcap", "position_bias", "s_aux") if options.get(name) is not None]
    if unknown:
        raise ValueError(f"attention over trees does not compute {', '.join(unknown)}")
    queries, keys, values = (_flat(states) for states in (query, key, value))
    results = []
    with torch.autocast(query.device.type, enabled=False):
        for bundle in attention_mask.bundles:
            out = functional.scaled_dot_product_attention(
                _gather(queries, bundle.queries, query.shape),
                _gather(keys, bundle.keys, key.shape),
                _gather(values, bundle.keys, value.shape),
                attn_mask=None
                if bundle.hidden is None
                else bundle.hidden.to(queries.dtype),  # torch 2.13 needs one type
                dropout_p=dropout,
                is_causal=bundle.hidden is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            results.append(out.transpose(1, 2).reshape(-1, queries.shape[1]))
        out = functional.embedding(attention_mask.places, torch.cat(results))
    return out.view(*out.shape[:2], query.shape[1], -1).to(query.dtype), None


def branches(forest: Forest) -> list[Branch]:
    """Cuts each row where a token is not the child of the one before. Padding, which nobody reads, is left out.

    Two answers to one prompt: the first is a branch with the prompt, the second has the prompt as its path. A long one
    is cut into several, each with those before it in its path.
    """
    found = []
    for row, (positions, reach) in enumerate(zip(forest.positions.cpu(), forest.reach.cpu(), strict=True)):
        index = torch.arange(len(positions))
        is_child = (positions[1:] == positions[:-1] + 1) & (reach[:-1] > index[1:])
        starts = torch.cat([index[:1], index[1:][~is_child]]).tolist()
        for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
            if end - start > 1 or positions[start] > 0:
                most = MOST_OWN if positions[start] > 0 else end - start
                for first in range(start, end, most):
                    path = (reach[:first] > first).nonzero().squeeze(1)
                    found.append(Branch(row, first, min(first + most, end), path))
    return found


def _bundles(found: Seq[Branch]) -> list[list[Branch]]:
    """Branches of similar shape together, longest path first; roots apart, for which no mask is needed."""
    bundles: list[list[Branch]] = []
    for branch in sorted(found, key=lambda b: (len(b.path) == 0, *b.size), reverse=True):
        if bundles and _is_worth_joining(bundles[-1], branch):
            bundles[-1].append(branch)
        else:
            bundles.append([branch])
    return bundles


def _is_worth_joining(bundle: list[Branch], branch: Branch) -> bool:
    together = [*bundle, branch]
    if (len(branch.path) == 0) != (len(bundle[0].path) == 0):
        return False
    padded = len(together) * _pairs(max(len(b.path) for b in together), max(b.size[1] for b in together))
    apart = sum(_pairs(*b.size) for b in together)
    return padded <= max(MOST_WASTE * apart, apart + FREE_PAIRS)


def _pairs(num_path: int, num_own: int) -> int:
    return num_own * (num_path + num_own)


def _bundle(together: Seq[Branch], length: int, window: int | None, num_before: int) -> _Bundle:
    most_path = num_before + max(len(b.path) for b in together)
    most_own = max(b.size[1] for b in together)
    queries = torch.full((len(together), most_own), -1)
    keys = torch.full((len(together), most_path + most_own), -1)
    depths = torch.zeros_like(keys)
    for k, branch in enumerate(together):
        own, first = torch.arange(branch.start, branch.end), branch.row * (num_before + length)
        path = torch.cat([torch.arange(num_before), num_before + branch.path])
        queries[k, : len(own)] = branch.row * length + own
        keys[k, : len(path)] = first + path
        keys[k, most_path : most_path + len(own)] = first + num_before + own
        depths[k, : len(path)] = torch.arange(len(path))
        depths[k, most_path:] = len(path) + torch.arange(most_own)
    if most_path == 0 and window is None:  # what pads the end comes after every query
        return _Bundle(queries, keys, None)
    distance = depths[:, most_path:, None] - depths[:, None, :]
    is_seen = (distance >= 0) & (distance < (window or torch.inf)) & (keys >= 0)[:, None]
    is_seen |= (queries < 0)[:, :, None]  # a padding query sees anything rather than nothing, which would be NaN
    hidden = torch.zeros(is_seen.shape).masked_fill_(~is_seen, torch.finfo(torch.float32).min)
    return _Bundle(queries, keys, hidden[:, None])


def _flat(states: Tensor) -> Tensor:
    """[rows, heads, n, d] → [rows · n, heads · d], in fp32 at least."""
    rows, heads, n, width = states.shape
    return full_precision(states).transpose(1, 2).reshape(rows * n, heads * width)


def _gather(flat: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """Tokens of [rows · n, heads · d] → [b, heads, tokens, d]; any token for padding."""
    # An embedding's backward pass adds up a token's gradients several times faster than an indexing operation's.
    rows = functional.embedding(index.clamp(min=0), flat)
    return rows.view(*index.shape, shape[1], shape[3]).transpose(1, 2)


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
