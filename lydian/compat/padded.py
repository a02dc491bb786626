"""Any objective on the padded [batch, time] tensors and masks that other training code has.

A row is a sequence and a true entry of the mask is a site. A row without a true entry is no sequence: its losses and
statistics are 0, no gradient reaches it, and no normaliser counts it. What stands at masked entries is never read, so
it may be anything, NaN included.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from lydian.data.forest import Normaliser
from lydian.errors import InputError
from lydian.objectives.loss import Loss
from lydian.objectives.segments import segment_sum

_FROM_MASK = "sequence"


def padded(objective: Callable[..., Loss]) -> Callable[..., Loss]:
    """The objective as a function of padded tensors: `padded(clip)(mask=…, logprobs=…, …) -> Loss`.

    All arguments go by keyword: `mask`, the objective's data and its settings.

    mask            [batch, time] bool or 0/1: which entries are sites
    data of a site  [batch, time], or [batch, 1] where a whole row has one value; with a vocabulary [batch, time, v]
    of a sequence   [batch]
    sequence        not given: the row's number

    Returns Loss with loss [batch, time] and statistics [batch, time], 0 where the mask is false. Gradients reach the
    given tensors. Raises InputError for an argument that is missing, unknown, or of another shape.

    >>> from lydian.objectives.policy_gradient import reinforce
    >>> logprobs = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
    >>> mask, advantage = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[0.5], [-1.0]])
    >>> padded(reinforce)(mask=mask, logprobs=logprobs, advantage=advantage).loss.tolist()
    [[0.5, 1.0, 0.0], [-3.0, 0.0, 0.0]]
    """
    parameters = inspect.signature(objective).parameters.values()
    settings = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    required = {p.name for p in parameters if p.default is p.empty} - {_FROM_MASK}
    hints = typing.get_type_hints(objective)
    data = {p.name: _dimensions(hints[p.name]) for p in parameters if p.kind is not p.KEYWORD_ONLY}
    name = getattr(objective, "__name__", "objective")

    @functools.wraps(objective)
    def on_padded(*, mask: Tensor, **given: Any) -> Loss:
        _check_names(f"padded({name})", set(given), required, (data.keys() - {_FROM_MASK}) | settings)
        is_site = _is_site(f"padded({name}): mask", mask)
        flat = {
            key: value
            if key in settings or value is None
            else _flat(f"padded({name}): {key}", value, data[key], is_site)
            for key, value in given.items()
        }
        if _FROM_MASK in data:
            flat[_FROM_MASK] = is_site.nonzero()[:, 0]
        loss, statistics = objective(**flat)
        return Loss(_scatter(loss, is_site), {key: _scatter(values, is_site) for key, values in statistics.items()})

    return on_padded


def reduce(
    loss: Tensor,
    mask: Tensor,
    normaliser: Normaliser,
    constant: float | None = None,
    *,
    pair: Tensor | None = None,
) -> Tensor:
    """Σ weight · loss over the true entries of the mask, with the weights of `lydian.data.forest.site_weights`.

    With S rows that have a true entry, n_s of them in row s, and P pairs of n_p entries in both rows:

    token_mean     weight 1 / Σ_s n_s
    sequence_mean  weight 1 / (S · n_s)
    constant       weight 1 / (S · constant)
    pair_mean      weight 1 / (P · n_p)

    loss      [batch, time]
    mask      [batch, time] bool or 0/1
    constant  > 0, for that normaliser
    pair      [batch] number of each row's pair, for pair_mean

    A mask without a true entry gives 0. When a step is split into micro-batches, reduce the whole step at once: the
    mean of the parts' means is another number. Raises InputError for wrong shapes, and where `constant` or `pair` is
    missing.

    >>> loss, mask = torch.tensor([[1.0, 3.0], [5.0, 0.0]]), torch.tensor([[1, 1], [1, 0]])
    >>> reduce(loss, mask, "token_mean").item(), reduce(loss, mask, "sequence_mean").item()
    (3.0, 3.5)
    >>> reduce(loss, mask, "constant", 3.0).item()
    1.5
    """
    is_site = _is_site("reduce: mask", mask)
    _require("reduce: loss", loss, is_site.shape, loss.shape == is_site.shape)
    num_sites = is_site.sum(1)
    num_sequences = (num_sites > 0).sum()
    if normaliser == "token_mean":
        units = num_sites.sum().expand_as(num_sites)
    elif normaliser == "sequence_mean":
        units = num_sequences * num_sites
    elif normaliser == "constant":
        if constant is None or constant <= 0:
            raise _error("reduce: constant", str(constant), "a number > 0", "Set it, e.g. to the limit on new tokens.")
        units = (num_sequences * constant).expand_as(num_sites)
    elif normaliser == "pair_mean":
        units = _pair_units(pair, num_sites)
    else:
        expected = ", ".join(get_args(Normaliser))
        raise _error("reduce: normaliser", repr(normaliser), f"one of {expected}", "Choose one of these.")
    weight = torch.where(num_sites > 0, 1 / units, 0.0).to(loss.dtype)
    return (_masked(loss, is_site) * weight[:, None]).sum()


def _pair_units(pair: Tensor | None, num_sites: Tensor) -> Tensor:
    """P · n_p for each row."""
    if pair is None:
        raise _error("reduce: pair", "none", "the number of each row's pair, [batch]", "Give it for pair_mean.")
    _require("reduce: pair", pair, num_sites.shape, pair.shape == num_sites.shape)
    index = torch.unique(pair, return_inverse=True)[1]
    sizes = segment_sum(num_sites.float(), index, len(num_sites))
    return (sizes > 0).sum() * sizes[index]


def _dimensions(hint: Any) -> tuple[str, ...]:
    """The names of a tensor's dimensions from its jaxtyping annotation, also inside `… | None`."""
    for part in (hint, *get_args(hint)):
        if hasattr(part, "dim_str"):
            return tuple(part.dim_str.split())
    return ()


def _check_names(where: str, given: set[str], required: set[str], known: set[str]) -> None:
    if unknown := sorted(given - known):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        fix = f"Did you mean {near[0]!r}?" if near else "Leave it out."
        if unknown[0] == _FROM_MASK:
            fix = "Leave it out: a row of the mask is a sequence."
        raise _error(where, ", ".join(unknown), f"arguments among mask, {', '.join(sorted(known))}", fix)
    if missing := sorted(required - given):
        raise _error(where, f"no {', '.join(missing)}", "all data of the objective", "Add it as a keyword argument.")


def _is_site(where: str, mask: Tensor) -> Tensor:
    _require(where, mask, ("batch", "time"), mask.ndim == 2)
    return mask.bool()


def _flat(where: str, value: Any, dimensions: tuple[str, ...], is_site: Tensor) -> Any:
    """[batch, time, …] at the sites; what is per sequence, or no tensor of either kind, as it is."""
    batch, time = is_site.shape
    if dimensions[:1] == ("s",):
        _require(where, value, (batch,), _shape(value) == (batch,))
    if dimensions[:1] != ("n",):
        return value
    rest = _shape(value)[2:]
    fits = _shape(value)[:2] in ((batch, time), (batch, 1)) and len(rest) == len(dimensions) - 1
    _require(where, value, (batch, time, *dimensions[1:]), fits)
    return value.expand(batch, time, *rest)[is_site]


def _scatter(values: Tensor, is_site: Tensor) -> Tensor:
    return torch.zeros(is_site.shape, dtype=values.dtype, device=values.device).masked_scatter(is_site, values)


def _masked(values: Tensor, is_site: Tensor) -> Tensor:
    return torch.where(is_site, values, torch.zeros_like(values))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _require(where: str, value: Any, shape: tuple[int | str, ...], holds: bool) -> None:
    if not holds:
        is_batch_wide = len(shape) > 1 and shape[:2] != ("batch", "time")
        expected = f"shape {_written(shape)}" + (f" or {_written((shape[0], 1, *shape[2:]))}" if is_batch_wide else "")
        fix = "Give one value an entry of the mask, or one a row where a row has one."
        raise _error(where, f"shape {_written(_shape(value))} ({type(value).__name__})", expected, fix)


def _written(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _error(where: str, given: str, expected: str, fix: str) -> InputError:
    return InputError(where=where, given=given, expected=expected, fix=fix)
