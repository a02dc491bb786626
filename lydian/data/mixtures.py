"""One data set made of several, by weights: new skills beside a replay of old ones, in shares that are said."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Generic, Literal

from lydian.data.problems import Item
from lydian.errors import InputError

Unit = Literal["examples", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a mixture took of one of its sets.

    share         wanted share of the mixture, in its unit
    num_examples, num_tokens  taken, repetitions counted
    share_examples, share_tokens  realised shares of the whole mixture
    num_different different items among them
    epochs        passes over the set: num_examples over the set's size
    """

    share: float
    num_examples: int
    num_tokens: int
    share_examples: float
    share_tokens: float
    num_different: int
    epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(Generic[Item]):
    """The items of a mixture in their order, what came from where, and why there are not more.

    ended_by  name of the set that was used up (max_epochs), or cap_examples, cap_tokens
    """

    items: tuple[Item, ...]
    parts: Mapping[str, Part]
    ended_by: str


def mix(
    sets: Mapping[str, Seq[Item]],
    weights: Mapping[str, float],
    num_tokens: Callable[[Item], int],
    *,
    weigh_by: Unit = "examples",
    cap_examples: int | None = None,
    cap_tokens: int | None = None,
    max_epochs: float = 1.0,
    seed: int = 0,
) -> Mixture[Item]:
    """Takes items from several sets in turn so that each keeps its share at every point of the order.

    sets          name → items
    weights       name → weight > 0; shares are weights over their sum
    num_tokens    length of an item in tokens
    weigh_by      what shares are of: examples or tokens
    cap_examples  most items in all
    cap_tokens    most tokens in all
    max_epochs    most passes over a set; the mixture ends where the first set is used up, so that no share shifts
    seed          order within the sets

    The next item comes from the set that has the least for its weight, of equals the lightest; the order within a set
    is a hash of seed, name, pass and id. The mixture is a pure function of its arguments, does not depend on the order
    of rows in files, and a larger cap only adds to its end. Ids become `name/id`, from the second pass on `name/id#2`.

    Raises InputError for sets and weights of different names, an empty set, and settings that are not positive.

    >>> from lydian.data.problems import Message, Problem
    >>> ask = (Message(role="user", content="?"),)
    >>> def numbered(num): return [Problem(id=str(k), messages=ask) for k in range(num)]
    >>> found = mix({"new": numbered(30), "old": numbered(5)}, {"new": 0.75, "old": 0.25}, lambda item: 10)
    >>> len(found.items), found.ended_by, found.parts["new"].num_examples
    (20, 'old', 15)
    """
    _check(sets, weights, cap_examples, cap_tokens, max_epochs)
    streams = {name: _stream(name, items, max_epochs, seed) for name, items in sets.items()}
    taken: dict[str, list[tuple[Item, int]]] = {name: [] for name in sets}
    used = dict.fromkeys(sets, 0)
    order: list[Item] = []
    room_examples, room_tokens = cap_examples or math.inf, cap_tokens or math.inf
    while True:
        name = min(sets, key=lambda name: (used[name] / weights[name], weights[name]))
        item = next(streams[name], None)
        size = 0 if item is None else num_tokens(item)
        if item is None or room_examples < 1 or room_tokens < size:
            ended_by = name if item is None else "cap_examples" if room_examples < 1 else "cap_tokens"
            break
        order.append(item)
        taken[name].append((item, size))
        used[name] += 1 if weigh_by == "examples" else size
        room_examples, room_tokens = room_examples - 1, room_tokens - size
    return Mixture(items=tuple(order), parts=_parts(sets, weights, taken), ended_by=ended_by)


def _stream(name: str, items: Seq[Item], max_epochs: float, seed: int) -> Iterator[Item]:
    """The items of a set in seeded order, pass after pass."""
    left = math.floor(max_epochs * len(items))
    for epoch in range(1, math.ceil(max_epochs) + 1):
        keyed = [(hashlib.sha256(repr((seed, name, epoch, item.id)).encode()).digest(), item) for item in items]
        for _, item in sorted(keyed, key=lambda pair: pair[0])[:left]:
            yield replace(item, id=f"{name}/{item.id}" + (f"#{epoch}" if epoch > 1 else ""))
        left -= len(items)


def _parts(
    sets: Mapping[str, Seq[Item]], weights: Mapping[str, float], taken: Mapping[str, Seq[tuple[Item, int]]]
) -> dict[str, Part]:
    total_examples = max(1, sum(len(rows) for rows in taken.values()))
    total_tokens = max(1, sum(size for rows in taken.values() for _, size in rows))
    parts = {}
    for name, rows in taken.items():
        tokens = sum(size for _, size in rows)
        parts[name] = Part(
            share=weights[name] / math.fsum(weights.values()),
            num_examples=len(rows),
            num_tokens=tokens,
            share_examples=len(rows) / total_examples,
            share_tokens=tokens / total_tokens,
            num_different=min(len(rows), len(sets[name])),
            epochs=len(rows) / len(sets[name]),
        )
    return parts


def _check(
    sets: Mapping[str, Seq[Item]],
    weights: Mapping[str, float],
    cap_examples: int | None,
    cap_tokens: int | None,
    max_epochs: float,
) -> None:
    wrong = sorted(sets.keys() ^ weights.keys())
    empty = [name for name, items in sets.items() if not items]
    light = {name: weight for name, weight in weights.items() if not 0 < weight < math.inf}
    caps = [cap for cap in (cap_examples, cap_tokens) if cap is not None]
    for where, given, is_wrong, expected in (
        ("sets and weights", f"{wrong} on one side only", bool(wrong) or not sets, "a weight for each set"),
        ("sets", f"nothing in {', '.join(empty)}", bool(empty), "items in every set"),
        ("weights", light, bool(light), "finite numbers > 0"),
        ("cap_examples and cap_tokens", caps, any(cap < 1 for cap in caps), "integers ≥ 1, or none"),
        ("max_epochs", max_epochs, not 0 < max_epochs < math.inf, "a finite number > 0"),
    ):
        if is_wrong:
            raise InputError(where=f"mixture: {where}", given=str(given), expected=expected, fix="Correct the setting.")
