"""A batch is a forest: sequences that begin alike share their prefix; the only file that shifts, packs or pads.

One integer a token says who sees whom: `reach[j]` is one past the last token of j's subtree, in the row's order. Query
i sees key j exactly when `j <= i < reach[j]`; the position of a token is its depth in the tree. Predictions are
`Sites`: flat vectors with one entry per trained token, naming the hidden state that predicts it (`source`) and the
token (`target`). At a branch one hidden state has several sites.

Two answers (9, 2) and (8,) to the prompt (5, 6), planted in one row:

    index      0  1  2  3  4
    token      5  6  8  9  2
    position   0  1  2  2  3
    reach      5  5  3  5  5
    sites      1→8, 1→9, 3→2       (source → target)

Normalisation is data: `site_weights` fills one weight per trained token over the whole optimiser step, before anything
is split, so that splitting a step into forests, micro-batches or ranks cannot change the gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.data.sequence import Pair, Sequence, num_common
from lydian.errors import InputError

Item = Sequence | Pair
Layout = Literal["shared", "packed", "single"]
"""shared: what a group's sequences begin with computed once, trees packed in rows, and what all sequences begin with (a
system prompt) once a row. packed: sequences packed, nothing shared. single: one sequence a row, right-padded, plain
causal attention: for models whose attention cannot take a mask of its own."""
Normaliser = Literal["token_mean", "sequence_mean", "constant", "pair_mean"]

LEAST_COMMON = 1 / 16
"""What all sequences of a step begin with is computed once a row if it makes up this share of their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Predictions of a forest, flat: one entry per trained token of each sequence."""

    source: Int[Tensor, " n"]
    """Index into the forest's flattened [rows · length] hidden states: the state that predicts."""
    after: Int[Tensor, " n"]
    """Index of the state that has read the target: what a score of the text so far is read from."""
    target: Int[Tensor, " n"]
    """The token that is predicted."""
    sequence: Int[Tensor, " n"]
    """Index into the forest's `sequence_ids`."""
    weight: Float[Tensor, " n"]
    """Weight in the step's loss, Σ weight · loss."""
    temperature: Float[Tensor, " n"]
    """The temperature that the token was sampled at."""
    streams: Mapping[str, Float[Tensor, " n"]]
    """The sequences' streams (advantage, behaviour_logprobs, …) at these tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Rows of trees, and the predictions to make on them: what one forward and backward pass computes."""

    tokens: Int[Tensor, "rows length"]
    positions: Int[Tensor, "rows length"]
    reach: Int[Tensor, "rows length"]
    layout: Layout
    sites: Sites
    sequence_ids: tuple[str, ...]
    facts: Mapping[str, Float[Tensor, " s"]]
    """One number a sequence, in the order of `sequence_ids`."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes, padding at row ends included."""
        return self.tokens.numel()

    def to(self, device: torch.device | str) -> Forest:
        """The same forest on another device."""
        sites = Sites(
            **{
                name: getattr(self.sites, name).to(device)
                for name in ("source", "after", "target", "sequence", "weight", "temperature")
            },
            streams={name: stream.to(device) for name, stream in self.sites.streams.items()},
        )
        return replace(
            self,
            tokens=self.tokens.to(device),
            positions=self.positions.to(device),
            reach=self.reach.to(device),
            sites=sites,
            facts={name: fact.to(device) for name, fact in self.facts.items()},
        )


def sequences_of(items: Seq[Item]) -> list[Sequence]:
    """All sequences in order; a pair gives its chosen, then its rejected."""
    return list(
        itertools.chain.from_iterable((i,) if isinstance(i, Sequence) else (i.chosen, i.rejected) for i in items)
    )


def site_weights(items: Seq[Item], normaliser: Normaliser, *, constant: float | None = None) -> dict[str, float]:
    """The weight of each trained token of each sequence, by sequence id, over a whole optimiser step.

    With S sequences of n_s trained tokens and P pairs of n_p:

    token_mean     1 / Σ_s n_s              DAPO, and next-token training
    sequence_mean  1 / (S · n_s)            GRPO
    constant       1 / (S · constant)       Dr. GRPO, with the constant usually the limit on new tokens
    pair_mean      1 / (P · n_p)            DPO: the pair's loss stands at each of its sites

    Raises InputError for pair_mean without pairs and for a constant that is missing or not positive.
    """
    sequences = sequences_of(items)
    if normaliser == "pair_mean":
        if not all(isinstance(item, Pair) for item in items):
            raise _layout_error("pair_mean", "items that are not pairs", "pairs only", "Use another normaliser.")
        pairs = [item for item in items if isinstance(item, Pair)]
        sites = {s.id: p.chosen.num_trained + p.rejected.num_trained for p in pairs for s in (p.chosen, p.rejected)}
        return {sequence_id: 1 / (len(items) * n) for sequence_id, n in sites.items()}
    if normaliser == "token_mean":
        total = sum(s.num_trained for s in sequences)
        return {s.id: 1 / total for s in sequences}
    if normaliser == "sequence_mean":
        return {s.id: 1 / (len(sequences) * s.num_trained) for s in sequences}
    if constant is None or constant <= 0:
        raise _layout_error("constant", f"constant={constant}", "a positive number", "Set it, e.g. to max_tokens.")
    return {s.id: 1 / (len(sequences) * constant) for s in sequences}


def plant(
    items: Seq[Item],
    weights: Mapping[str, float],
    *,
    layout: Layout = "shared",
    batch_tokens: int = 2048,
    row_tokens: int | None = None,
) -> list[Forest]:
    """Lays sequences out for the model: trees packed into rows, rows grouped into micro-batches.

    items         sequences and pairs; ids unique. A pair never leaves its micro-batch
    weights       sequence id → weight of each of its trained tokens (`site_weights` over the whole step)
    batch_tokens  budget of a forest, padding included; at least one row
    row_tokens    budget of a row; by default, and at most, batch_tokens. A longer sequence gets a longer row of its own

    Sequences of one group share what they begin with, and all sequences of a row share what all of the step begin with.
    Every trained token of every sequence becomes exactly one site of exactly one forest.
    """
    if not items:
        return []
    sequences = sequences_of(items)
    row_tokens = batch_tokens if row_tokens is None else min(row_tokens, batch_tokens)
    if len({s.id for s in sequences}) != len(sequences):
        raise _layout_error("plant", "two sequences with one id", "unique ids within a step", "Number the samples.")
    plots = [plot for group in _units_by_group(items, layout) for plot in _plots(group, layout, row_tokens)]
    if layout == "single":
        bins = plots
    else:
        common = _common_start(sequences) if layout == "shared" else 0
        bins = [[_joined(trees, common)] for trees in _first_fit(plots, row_tokens, common)]
    return [_forest(batch, weights, layout) for batch in _batches(bins, batch_tokens)]


@dataclass(frozen=True, slots=True)
class _Tree:
    """Tokens in depth-first order; nodes[k] are the indices of sequence k's tokens, root to leaf."""

    tokens: np.ndarray
    positions: np.ndarray
    reach: np.ndarray
    sequences: tuple[Sequence, ...]
    nodes: tuple[np.ndarray, ...]


_Plot = list[_Tree]
"""Trees that must stay in one micro-batch."""


def _tree(sequences: Seq[Sequence]) -> _Tree:
    """Merges common prefixes. Sorted sequences visit the trie depth first, so each adds only what follows its common
    prefix with the one before, and a node's subtree ends where the last sequence through it ends."""
    ordered = sorted(sequences, key=lambda s: s.tokens)
    arrays = [np.asarray(s.tokens, dtype=np.int64) for s in ordered]
    nodes: list[np.ndarray] = []
    new_tokens, new_positions, size = [], [], 0
    for k, array in enumerate(arrays):
        shared = _common_prefix(arrays[k - 1], array) if k else 0
        fresh = np.arange(size, size + len(array) - shared)
        nodes.append(np.concatenate([nodes[-1][:shared], fresh]) if k else fresh)
        new_tokens.append(array[shared:])
        new_positions.append(np.arange(shared, len(array)))
        size += len(fresh)
    reach = np.empty(size, dtype=np.int64)
    end = 0
    for k in range(len(nodes)):
        end += len(new_tokens[k])
        reach[nodes[k]] = end
    return _Tree(np.concatenate(new_tokens), np.concatenate(new_positions), reach, tuple(ordered), tuple(nodes))


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def _units_by_group(items: Seq[Item], layout: Layout) -> list[list[Item]]:
    """Items that may share a tree: those of one group when prefixes are shared, else each by itself."""
    if layout != "shared":
        return [[item] for item in items]
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group if isinstance(item, Sequence) else item.chosen.group, []).append(item)
    return list(groups.values())


def _plots(units: list[Item], layout: Layout, row_tokens: int) -> list[_Plot]:
    """The trees of one group: one if it fits a row, else as few as a greedy split by units gives."""
    if layout != "shared":
        return [[_tree([sequence]) for sequence in sequences_of(units)]]
    whole = _tree(sequences_of(units))
    if len(whole.tokens) <= row_tokens or len(units) == 1:
        return [[whole]]
    middle = len(units) // 2
    return _plots(units[:middle], layout, row_tokens) + _plots(units[middle:], layout, row_tokens)


def _size(plot: _Plot) -> int:
    return sum(len(tree.tokens) for tree in plot)


def _common_start(sequences: Seq[Sequence]) -> int:
    """Tokens that all sequences begin with, such as a system prompt; 0 where sharing them would not pay.

    Who shares a start pays for it in attention, where what follows is no longer causal order alone.
    """
    tokens = [s.tokens for s in sequences]
    common = num_common(tokens)
    return common if common * len(tokens) >= LEAST_COMMON * sum(map(len, tokens)) else 0


def _first_fit(plots: list[_Plot], row_tokens: int, common: int) -> list[list[_Tree]]:
    """Bin packing, largest first, of trees of which all but a row's first are `common` tokens shorter: at most 11/9 of
    the fewest rows possible, plus one."""
    bins: list[list[_Tree]] = []
    room: list[int] = []
    for plot in sorted(plots, key=_size, reverse=True):
        size = _size(plot)
        saved = common * len(plot)
        place = next((i for i, free in enumerate(room) if free >= size - saved), None)
        if place is None:
            bins.append(list(plot))
            room.append(row_tokens - size)
        else:
            bins[place] += plot
            room[place] -= size - saved
    return bins


def _joined(trees: Seq[_Tree], common: int) -> _Tree:
    """Trees one after another in a row; the `common` tokens that all begin with stand there once."""
    tokens, positions, reach, nodes = [], [], [], []
    size = 0
    for tree in trees:
        start = common if size else 0
        moved = size - start
        tokens.append(tree.tokens[start:])
        positions.append(tree.positions[start:])
        reach.append(tree.reach[start:] + moved)
        nodes += [np.concatenate([np.arange(start), path[start:] + moved]) for path in tree.nodes]
        size += len(tree.tokens) - start
    whole = np.concatenate(reach)
    whole[:common] = size
    sequences = tuple(sequence for tree in trees for sequence in tree.sequences)
    return _Tree(np.concatenate(tokens), np.concatenate(positions), whole, sequences, tuple(nodes))


def _batches(bins: Seq[list[_Tree]], batch_tokens: int) -> list[list[_Tree]]:
    """Bins, of one row a tree, of similar length together, so that little is padded, as many as the budget holds."""
    batches: list[list[_Tree]] = []
    for rows in sorted(bins, key=lambda rows: max(len(row.tokens) for row in rows), reverse=True):
        longest = max(len(row.tokens) for row in batches[-1]) if batches else 0
        if batches and (len(batches[-1]) + len(rows)) * longest <= batch_tokens:
            batches[-1].extend(rows)
        else:
            batches.append(list(rows))
    return batches


def _forest(rows: list[_Tree], weights: Mapping[str, float], layout: Layout) -> Forest:
    length = max(len(row.tokens) for row in rows)
    tokens, positions = (np.zeros((len(rows), length), dtype=np.int64) for _ in range(2))
    reach = np.tile(np.arange(1, length + 1), (len(rows), 1))  # a padding token sees itself and nobody sees it
    placed: list[tuple[Sequence, np.ndarray]] = []
    for r, row in enumerate(rows):
        span = slice(len(row.tokens))
        tokens[r, span], positions[r, span], reach[r, span] = row.tokens, row.positions, row.reach
        placed.extend((s, nodes + r * length) for s, nodes in zip(row.sequences, row.nodes, strict=True))
    sequences = [sequence for sequence, _ in placed]
    return Forest(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        reach=torch.from_numpy(reach),
        layout=layout,
        sites=_sites(placed, weights),
        sequence_ids=tuple(s.id for s in sequences),
        facts={
            name: torch.tensor([s.facts[name] for s in sequences])
            for name in _common_names([s.facts for s in sequences])
        },
    )


def _sites(placed: list[tuple[Sequence, np.ndarray]], weights: Mapping[str, float]) -> Sites:
    """The one shift: token t is predicted by the node of token t − 1."""
    trained = [np.flatnonzero(np.asarray(s.trained)) for s, _ in placed]
    counts = [len(t) for t in trained]
    names = _common_names([s.streams for s, _ in placed])

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), counts))

    return Sites(
        source=torch.from_numpy(np.concatenate([nodes[t - 1] for (_, nodes), t in zip(placed, trained, strict=True)])),
        after=torch.from_numpy(np.concatenate([nodes[t] for (_, nodes), t in zip(placed, trained, strict=True)])),
        target=torch.from_numpy(
            np.concatenate([np.asarray(s.tokens, dtype=np.int64)[t] for (s, _), t in zip(placed, trained, strict=True)])
        ),
        sequence=torch.from_numpy(np.repeat(np.arange(len(placed)), counts)),
        weight=spread([weights[s.id] for s, _ in placed]),
        temperature=spread([s.temperature for s, _ in placed]),
        streams={
            name: torch.from_numpy(
                np.concatenate(
                    [
                        np.asarray(s.streams[name], dtype=np.float32)[t]
                        for (s, _), t in zip(placed, trained, strict=True)
                    ]
                )
            )
            for name in names
        },
    )


def _common_names(mappings: Seq[Mapping[str, object]]) -> list[str]:
    """Names that every sequence carries; a name that only some carry is an error, since absence is not zero."""
    names = set(mappings[0])
    for mapping in mappings:
        if set(mapping) != names:
            odd = sorted(names ^ set(mapping))
            raise _layout_error("plant", f"{odd} on some sequences only", "the same names on all", "Add them to all.")
    return sorted(names)


def _layout_error(where: str, given: str, expected: str, fix: str) -> InputError:
    return InputError(where=f"forest.{where}", given=given, expected=expected, fix=fix)
