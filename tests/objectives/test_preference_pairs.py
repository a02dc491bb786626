"""What every loss on pairs shares: bookkeeping, statistics, gradients, extremes, precision, independence of pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lydian.objectives import (
    preference,
    preference_anchored,
    preference_free,
    preference_length,
    preference_transport,
    reward,
)
from lydian.objectives.loss import Loss
from lydian.objectives.preference_pairs import Pairs

LOSSES: dict[str, Callable[..., Loss]] = {
    loss.__name__: loss
    for loss in (
        *(preference.dpo, preference.cdpo, preference.robust_dpo, preference.ipo, preference.ipo_mean),
        *(preference.hinge, preference.exo, preference.discopop, preference.f_dpo, preference.wpo),
        *(preference_length.dpo_normalised, preference_length.r_dpo, preference_length.ld_dpo),
        *(
            preference_anchored.apo_zero,
            preference_anchored.apo_down,
            preference_anchored.nca,
            preference_anchored.sppo,
        ),
        *(preference_free.simpo, preference_free.orpo, preference_free.cpo, preference_free.chosen_nll),
        *(preference_transport.aot, reward.bradley_terry, reward.bradley_terry_margin),
    )
}
LEARNED = ("logprobs", "score")

# Two pairs of five, four, two and three tokens, sites and sequences out of order.
SEQUENCE = torch.tensor([2, 0, 0, 1, 3, 2, 0, 1, 0, 1, 3, 2, 1, 0])
PAIR, CHOSEN = torch.tensor([7.0, 4.0, 4.0, 7.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])


def data(num_sites: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    draw = {
        name: -torch.rand(num_sites, generator=generator, dtype=torch.float64) - 0.05
        for name in ("logprobs", "reference_logprobs", "log_collision", "score")
    }
    facts = {"sequence": SEQUENCE, "pair": PAIR, "is_chosen": CHOSEN}
    facts |= {"partner_margin": torch.full((4,), 0.3), "pair_margin": torch.full((4,), 0.2)}
    return {name: values.to(dtype) for name, values in draw.items()} | facts


def call(loss: Callable[..., Loss], known: dict[str, Tensor]) -> Loss:
    kinds = inspect.signature(loss).parameters.values()
    return loss(*(known[p.name] for p in kinds if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD))


def learned(loss: Callable[..., Loss]) -> str:
    return next(name for name in inspect.signature(loss).parameters if name in LEARNED)


def test_pairs_are_found_whatever_their_order():
    """Numbers 7, 4, 4, 7: pair 4 is sequences 2 (chosen) and 1, pair 7 is 0 and 3; pairs stand in order of number."""
    pairs = Pairs.of(torch.tensor([0, 1, 2, 3]), PAIR, CHOSEN)
    assert (pairs.chosen.tolist(), pairs.rejected.tolist()) == ([2, 0], [1, 3])
    assert pairs.site_pair.tolist() == [1, 0, 0, 1]
    assert pairs.margin(torch.tensor([1.0, 2.0, 4.0, 8.0])).tolist() == [2.0, -7.0]


@pytest.mark.parametrize("chosen", [[1.0, 1.0], [0.0, 0.0], [1.0], [1.0, 0.0, 0.0]])
def test_an_incomplete_pair_is_refused(chosen: list[float]):
    """A pair cut in two would silently be compared with a log-ratio of 0."""
    with pytest.raises(ValueError, match="one chosen and one rejected"):
        Pairs.of(torch.zeros(1, dtype=torch.long), torch.zeros(len(chosen)), torch.tensor(chosen))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_finite_differences(name: str):
    loss, known = LOSSES[name], data(len(SEQUENCE))
    key = learned(loss)
    at = known[key].requires_grad_()
    if name == "wpo":  # its weight is constant: differences would see it move
        known["log_collision"] = known["logprobs"].detach() - 1
    assert torch.autograd.gradcheck(lambda x: call(loss, known | {key: x}).loss, (at,))


@pytest.mark.parametrize("name", LOSSES)
def test_only_the_policy_learns(name: str):
    """Everything else is a constant, even where it carries gradients; statistics carry none."""
    loss = LOSSES[name]
    known = {k: v.requires_grad_() if v.dtype.is_floating_point else v for k, v in data(len(SEQUENCE)).items()}
    got = call(loss, known)
    got.loss.sum().backward()
    moved = {k for k, v in known.items() if v.grad is not None and v.grad.abs().sum() > 0}
    assert moved == {learned(loss)}
    assert not any(values.requires_grad for values in got.statistics.values())


@pytest.mark.parametrize("extreme", [-torch.inf, -50.0, 0.0])
@pytest.mark.parametrize("name", LOSSES)
def test_extremes_stay_finite(name: str, extreme: float):
    """Log-ratios of ±50 a token, probabilities 0 and 1, on either side, in policy, reference or both."""
    loss, key = LOSSES[name], learned(LOSSES[name])
    if key == "score":  # not a logarithm: large, but finite
        extreme = max(extreme, -50.0)
    for side in (0.0, 1.0):
        hit = CHOSEN[SEQUENCE] == side
        for changed in ((key,), ("reference_logprobs",), (key, "reference_logprobs")):
            known = data(len(SEQUENCE), torch.float32)
            for one in changed:
                known[one] = torch.where(hit, extreme, known[one])
            at = known[key].requires_grad_()
            got = call(loss, known)
            got.loss.sum().backward()
            assert got.loss.isfinite().all() and at.grad.isfinite().all(), (name, side, changed)
            assert all(values.isfinite().all() for values in got.statistics.values())


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_full(name: str):
    known = data(len(SEQUENCE), torch.bfloat16)
    got = call(LOSSES[name], known)
    assert got.loss.dtype == torch.float32
    floats = ("logprobs", "reference_logprobs", "log_collision", "score")
    exact = call(LOSSES[name], known | {k: known[k].double() for k in floats})
    torch.testing.assert_close(got.loss.double(), exact.loss, atol=1e-5, rtol=1e-5)
    assert exact.loss.dtype == torch.float64


@pytest.mark.parametrize("name", LOSSES)
def test_a_pair_is_alone(name: str):
    """The loss of pair 7 (sequences 0 and 3) is the same without pair 4, and with its sequences renumbered."""
    known = data(len(SEQUENCE))
    whole = call(LOSSES[name], known)
    own = (SEQUENCE == 0) | (SEQUENCE == 3)
    part = {k: v[own] if len(v) == len(SEQUENCE) else v[[3, 0]] for k, v in known.items()}
    part["sequence"] = (part["sequence"] == 0).long()
    got = call(LOSSES[name], part)
    torch.testing.assert_close(got.loss, whole.loss[own])
    for key, values in got.statistics.items():
        torch.testing.assert_close(values, whole.statistics[key][own])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_first_step_separates_the_pair(name: str):
    """From π equal to the reference, a step down the gradient raises the chosen above the rejected reply, in sum over
    tokens. Not so for DiscoPOP, whose loss rises with h near 0."""
    loss, known = LOSSES[name], data(len(SEQUENCE))
    key, sign = learned(loss), -1 if name == "discopop" else 1
    known |= {"reference_logprobs": known["logprobs"].clone(), "partner_margin": torch.zeros(4)}
    at = known[key].requires_grad_()
    call(loss, known).loss.sum().backward()
    assert at.grad is not None
    step = Pairs.of(SEQUENCE, PAIR, CHOSEN).sum(-at.grad)
    assert (Pairs.of(SEQUENCE, PAIR, CHOSEN).margin(sign * step) > 0).all()


def test_an_empty_call_gives_an_empty_loss():
    none, nothing = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert preference.dpo(none, none, nothing, none, none).loss.shape == (0,)
