"""A weighted sum of losses is a loss: same contract, so that a learner takes it like any other."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from lydian.objectives.loss import Loss

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def mixture(losses: Mapping[Callable[..., Loss], float]) -> Callable[..., Loss]:
    """Σ_k w_k L_k as one loss that needs what its parts need.

    losses  loss function → weight; settings are bound beforehand with `functools.partial`

    The returned function's positional parameters are the union of the parts', in the order in which they first appear.
    Statistics: `<name>_loss` of each part, before its weight, and all of the parts' own; one that several parts report
    is called `<name>_<statistic>`. A second part of the same function is named `<name>_2`.

    Use: `dpo` with `chosen_nll` (RPO), or with `bco` and `chosen_nll` (MPO). Trap: one normaliser weighs all parts, so
    mix losses of one kind (of pairs, of sequences, of tokens). Raises ValueError without losses.

    >>> import torch
    >>> from lydian.objectives.preference_free import chosen_nll, simpo
    >>> both = mixture({simpo: 1.0, chosen_nll: 0.5})
    >>> list(inspect.signature(both).parameters)
    ['logprobs', 'sequence', 'pair', 'is_chosen']
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(both(torch.tensor([-1.0, -1.5]), ids, pair, is_chosen).loss[0].item(), 4)  # 0.4741 + 0.5 · 1
    0.9741
    """
    if not losses:
        raise ValueError("mixture: no losses")
    parts = [
        (name, loss, _data_of(loss), weight)
        for name, (loss, weight) in zip(_names(losses), losses.items(), strict=True)
    ]
    union = {p.name: p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for part in parts for p in part[2]}
    signature = inspect.Signature(list(union.values()), return_annotation=Loss)

    def mixed(*args: Tensor, **kwargs: Tensor) -> Loss:
        data = signature.bind(*args, **kwargs).arguments
        return _sum({name: (loss(*(data[p.name] for p in needs)), weight) for name, loss, needs, weight in parts})

    mixed.__name__ = f"mixture({', '.join(name for name, *_ in parts)})"
    mixed.__signature__ = signature  # type: ignore[attr-defined]
    return mixed


def _sum(parts: Mapping[str, tuple[Loss, float]]) -> Loss:
    shared = Counter(key for loss, _ in parts.values() for key in loss.statistics)
    statistics: dict[str, Tensor] = {}
    for name, (loss, _) in parts.items():
        statistics[f"{name}_loss"] = loss.loss.detach()
        for key, values in loss.statistics.items():
            statistics[key if shared[key] == 1 else f"{name}_{key}"] = values
    total = [weight * loss.loss for loss, weight in parts.values()]
    return Loss(sum(total[1:], start=total[0]), statistics)


def _data_of(loss: Callable[..., Loss]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(loss).parameters.values() if p.kind in _POSITIONAL]


def _names(losses: Mapping[Callable[..., Loss], Any]) -> list[str]:
    """A name for each loss: its function's, numbered from the second of the same name on."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for loss in losses:
        name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names
