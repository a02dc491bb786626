"""Facts that couple all sequences of an optimiser step, measured before it is split into micro-batches.

KTO compares with a KL estimated on mismatched replies, AOT with the reply of equal rank, BCO with the mean reward.
Each is a number a sequence without gradient, so that any split of the step still gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from lydian.data.forest import Item, sequences_of
from lydian.data.sequence import Pair, Sequence
from lydian.errors import RunError
from lydian.objectives.preference_transport import aot_partners, aot_unpaired_partners
from lydian.objectives.preference_unpaired import bco_shift, kto_kl, mismatched_replies

Measure = Callable[[Seq[Item]], tuple[Tensor, Tensor]]
"""Σ log π and Σ log π_reference of each sequence, each [s], in the order of `sequences_of`."""


def with_step_facts(
    items: Seq[Item], names: Seq[str], measure: Measure, *, beta: float, last: dict[str, float]
) -> list[Item]:
    """The items with the named facts on every sequence.

    beta  scale of the objective's rewards
    last  what the last step measured of the facts that a step may take over (`KEPT`); what this one measures is set

    Raises RunError where the step is too small for one, and there is none to take over.
    """
    for name in names:
        try:
            values = STEP_FACTS[name](items, measure, beta)
        except ValueError as error:
            if name not in last:
                raise RunError(
                    where=f"{name} of a step of {len(items)} items",
                    given=str(error),
                    expected="a step large enough to compare its sequences",
                    fix="Raise batch_size.",
                ) from error
            values = torch.full((len(sequences_of(items)),), last[name])
        if name in KEPT:
            last[name] = values[0].item()
        items = _with_fact(items, name, values)
    return list(items)


def _with_fact(items: Seq[Item], name: str, values: Tensor) -> list[Item]:
    facts = dict(zip((s.id for s in sequences_of(items)), values.tolist(), strict=True))
    return mapped(items, lambda sequence: replace(sequence, facts={**sequence.facts, name: facts[sequence.id]}))


def mapped(items: Seq[Item], change: Callable[[Sequence], Sequence]) -> list[Item]:
    """The items with every sequence changed; pairs stay pairs."""
    return [
        change(item) if isinstance(item, Sequence) else Pair(chosen=change(item.chosen), rejected=change(item.rejected))
        for item in items
    ]


def with_stream(items: Seq[Item], name: str, values: Mapping[str, Seq[float]]) -> list[Item]:
    """The items with a stream more: the values of their trained tokens by sequence id, in token order."""

    def widened(sequence: Sequence) -> Sequence:
        trained = iter(values[sequence.id])
        stream = tuple(next(trained) if used else 0.0 for used in sequence.trained)
        return replace(sequence, streams={**sequence.streams, name: stream})

    return mapped(items, widened)


def mismatched(items: Seq[Item]) -> list[Sequence]:
    """Each prompt of the step with the reply to another: what KTO's KL is estimated on.

    Raises ValueError if more than half of the sequences answer one prompt.
    """
    sequences = sequences_of(items)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(s.group for s in sequences))}
    partners = mismatched_replies(torch.tensor([numbers[s.group] for s in sequences])).tolist()
    return [_crossed(sequence, sequences[k]) for sequence, k in zip(sequences, partners, strict=True)]


def _crossed(own: Sequence, other: Sequence) -> Sequence:
    """The prompt of the one with the reply of the other."""
    start, reply = own.trained.index(True), other.trained.index(True)
    return Sequence(
        id=own.id,
        group=own.group,
        tokens=own.tokens[:start] + other.tokens[reply:],
        trained=own.trained[:start] + other.trained[reply:],
    )


def _fact(items: Seq[Item], name: str) -> Tensor:
    return torch.tensor([sequence.facts[name] for sequence in sequences_of(items)])


def _kl_estimate(items: Seq[Item], measure: Measure, beta: float) -> Tensor:
    current, reference = measure(mismatched(items))
    return kto_kl(current - reference).expand(len(current))


def _partner_margin(items: Seq[Item], measure: Measure, beta: float) -> Tensor:
    return aot_partners(*measure(items), _fact(items, "pair"), _fact(items, "is_chosen"))


def _partner_log_ratio(items: Seq[Item], measure: Measure, beta: float) -> Tensor:
    current, reference = measure(items)
    return aot_unpaired_partners(current - reference, _fact(items, "is_chosen"))


def _reward_shift(items: Seq[Item], measure: Measure, beta: float) -> Tensor:
    current, reference = measure(items)
    return bco_shift(beta * (current - reference), _fact(items, "is_desirable")).expand(len(current))


STEP_FACTS: Mapping[str, Callable[[Seq[Item], Measure, float], Tensor]] = {
    "kl_estimate": _kl_estimate,
    "partner_margin": _partner_margin,
    "partner_log_ratio": _partner_log_ratio,
    "reward_shift": _reward_shift,
}
"""How each is measured, by the name that objectives ask for."""
KEPT = ("reward_shift",)
"""Facts for which a step that cannot measure them, all of one class, takes over the last step's."""
