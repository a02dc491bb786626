"""Weights between behaviour and proximal policy by hand, their statistics, and what they do to an expected gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lydian.objectives.correction import batch_normalised, correction_statistics, importance_weights
from lydian.objectives.policy_gradient import clip, ratio

BEHAVIOUR, PROXIMAL = torch.tensor([-1.1, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -0.5])
ONE = torch.tensor([0, 0, 0])
NEVER = {"mode": "truncate", "high": 1e30}


def weights(**settings) -> Tensor:
    return importance_weights(BEHAVIOUR, PROXIMAL, ONE, **settings)


def test_token_weights_by_hand():
    """exp(−1 + 1.1), exp(−2 + 1), exp(−.5 + 2) = 1.1052, .3679, 4.4817; truncated at 2; band and reject [.5, 2]."""
    for settings, expected in (
        (NEVER, [1.1052, 0.3679, 4.4817]),
        ({"high": 2.0}, [1.1052, 0.3679, 2.0]),
        ({"mode": "band", "low": 0.5, "high": 2.0}, [1.1052, 0.0, 0.0]),
        ({"mode": "band", "high": 2.0}, [1.1052, 0.3679, 0.0]),
        ({"mode": "reject", "low": 0.5, "high": 2.0}, [1.0, 0.0, 0.0]),
        ({"mode": "reject", "low": 0.3, "high": 2.0}, [1.0, 1.0, 0.0]),
    ):
        torch.testing.assert_close(weights(**settings), torch.tensor(expected), atol=5e-5, rtol=0)


def test_sequence_weights_by_hand():
    """The log-ratios .1, −1, 1.5 sum to .6: product e^.6 = 1.8221, geometric mean e^.2 = 1.2214."""
    for level, expected in (("sequence", 1.8221), ("geometric", 1.2214)):
        torch.testing.assert_close(weights(level=level, **NEVER), torch.full((3,), expected), atol=5e-5, rtol=0)
    assert weights(level="sequence", high=1.5).tolist() == [1.5] * 3
    assert weights(level="sequence", mode="band", high=1.5).tolist() == [0.0] * 3
    assert weights(level="geometric", mode="reject", low=0.9, high=1.5).tolist() == [1.0] * 3
    assert weights(level="geometric", mode="reject", low=0.9, high=1.2).tolist() == [0.0] * 3


def test_sequences_are_kept_apart_and_levels_multiply():
    """Sequences interleaved: log-ratios (1, .2) of 5 and (−1, −3) of 2. Geometric means e^.6 = 1.82, e^−2 = .135:
    [.5, 2] keeps 5, whose tokens weigh min(e, 2) = 2 and e^.2 = 1.2214."""
    behaviour, sequence = torch.zeros(4), torch.tensor([5, 2, 5, 2])
    proximal = torch.tensor([1.0, -1.0, 0.2, -3.0])
    keep = importance_weights(behaviour, proximal, sequence, level="geometric", mode="reject", low=0.5, high=2.0)
    product = keep * importance_weights(behaviour, proximal, sequence, high=2.0)
    torch.testing.assert_close(product, torch.tensor([2.0, 0.0, 1.2214, 0.0]), atol=5e-5, rtol=0)


def test_weights_are_constants_finite_and_full_precision():
    """±50 is clamped to ±20, for a sum after summing (two of +30 and −30 make 1); −∞ against −∞ counts as equal."""
    current = torch.tensor([50.0, -50.0, -math.inf, -math.inf], requires_grad=True)
    behaviour = torch.tensor([0.0, 0.0, 0.0, -math.inf])
    got = importance_weights(behaviour, current, torch.arange(4), **NEVER)
    assert not got.requires_grad
    assert got.tolist() == pytest.approx([math.exp(20), math.exp(-20), math.exp(-20), 1.0])
    pair = importance_weights(torch.zeros(2), torch.tensor([30.0, -30.0]), torch.tensor([0, 0]), level="sequence")
    assert pair.tolist() == [1.0, 1.0]
    half = BEHAVIOUR.bfloat16()
    assert importance_weights(half, half, ONE).dtype == torch.float32


def test_bounds_that_would_do_nothing_or_everything_are_refused():
    with pytest.raises(ValueError, match="no lower bound"):
        weights(mode="truncate", low=0.5)
    with pytest.raises(ValueError, match="low < high"):
        weights(mode="band", low=2.0, high=0.5)


def test_bypass_counts_nothing_twice():
    """Proximal set to behaviour: every weight is 1 at every level, and the clip's ratio is π/μ alone."""
    for level in ("token", "sequence", "geometric"):
        assert importance_weights(BEHAVIOUR, BEHAVIOUR, ONE, level=level).tolist() == [1.0] * 3
    _, statistics = clip(PROXIMAL, BEHAVIOUR, torch.ones(3))
    torch.testing.assert_close(statistics["ratio"], weights(**NEVER))


def test_batch_normalised():
    """(1, 3, 8): token mean 4. Sequences (1, 3) and (8): mean of 2 and 8 is 5."""
    got, sequence = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 4])
    assert batch_normalised(got, sequence).tolist() == [0.25, 0.75, 2.0]
    assert batch_normalised(got, sequence, level="sequence").tolist() == pytest.approx([0.2, 0.6, 1.6])
    assert batch_normalised(torch.zeros(3), sequence).tolist() == [0.0] * 3


# Three policies on two actions: μ = q = (.8, .2), p = (.6, .4), π = (.55, .45) = σ(θ), A = (1, −1).
Q, P, A = torch.tensor([[0.8, 0.2], [0.6, 0.4], [1.0, -1.0]], dtype=torch.float64)
TRUNCATE, BAND, REJECT = ({"mode": mode, "high": 1.5} for mode in ("truncate", "band", "reject"))


@pytest.mark.parametrize(
    ("settings", "objective", "slope"),
    [
        (None, 0.508333, 0.453750),
        (NEVER, 0.1, 0.495),
        (TRUNCATE, 0.2125, 0.433125),
        (BAND, 0.55, 0.2475),
        (REJECT, 0.733333, 0.33),
    ],
)
def test_three_policies_on_two_actions(settings, objective: float, slope: float):
    """J = Σ_a q w r A with w = p/q = (.75, 2) and r = π/p = (.916667, 1.125); dπ₁/dθ = .55·.45 = .2475 = −dπ₂/dθ, so
    dr/dθ = (.4125, −.61875).

    Without w: .8·.916667 − .2·1.125 = .508333; .8·.4125 + .2·.61875 = .45375. Full w gives the truth, Σ π A = .1 and
    2·.2475 = .495. Truncated at 1.5: .8·.75·.916667 − .2·1.5·1.125 = .55 − .3375 = .2125; .2475 + .185625 = .433125.
    Band above 1.5 drops action two: .55, .2475. Reject drops it too but weighs action one with 1: .733333, .33."""
    theta = torch.tensor(math.log(0.55 / 0.45), dtype=torch.float64, requires_grad=True)
    current = torch.stack([torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta)])
    w = torch.ones(2).double()
    if settings is not None:
        w = importance_weights(Q.log(), P.log(), torch.tensor([0, 1]), **settings)
    j = -(Q * w * ratio(current, P.log(), A).loss).sum()
    assert j.item() == pytest.approx(objective, abs=1e-6)
    assert torch.autograd.grad(j, theta)[0].item() == pytest.approx(slope, abs=1e-9)


def test_rejection_times_token_weights_is_the_band():
    ids = torch.tensor([0, 1])
    product = importance_weights(Q.log(), P.log(), ids, **REJECT) * importance_weights(Q.log(), P.log(), ids, **NEVER)
    torch.testing.assert_close(product, importance_weights(Q.log(), P.log(), ids, **BAND))


def test_statistics_of_tokens_by_hand():
    """w = (1.1052, .3679, 4.4817): mean 1.9849; squares 1.2214 + .1353 + 20.0855 = 21.4423, so
    ess = 5.9548²/(3·21.4423) = .55123, χ² = 7.14742 − 1 and std √(7.14742 − 1.98492²) = 1.79095.
    Bounds [.5, 2]: one below, one above. Applied (1.1052, 0, 0): ess 1/3, two of three tokens rejected, no sequence.
    k1 = −(.1 − 1 + 1.5)/3 = −.2; k3 = mean(w − 1 − log w) = 1.98492 − 1 − .2 = .78492; products: e^.6² − 1 = 2.3201."""
    applied = weights(mode="band", low=0.5, high=2.0)
    found = correction_statistics(BEHAVIOUR, PROXIMAL, ONE, applied, low=0.5, high=2.0)
    expected = {
        "weight_mean": 1.98492, "weight_std": 1.79095, "weight_min": 0.36788, "weight_max": 4.48169,
        "share_below": 1 / 3, "share_above": 1 / 3, "ess": 0.55123, "clamped": 0.0,
        "applied_mean": 0.36839, "applied_max": 1.10517, "applied_ess": 1 / 3,
        "rejected_tokens": 2 / 3, "rejected_sequences": 0.0,
        "kl_k1_behaviour_proximal": -0.2, "kl_k3_behaviour_proximal": 0.78492,
        "chi2_proximal_behaviour": 6.14742, "chi2_sequence_proximal_behaviour": math.exp(1.2) - 1,
        "support_lost": -0.98492,
    }  # fmt: skip
    assert found == pytest.approx(expected, abs=2e-5)


def test_a_long_sequence_counts_once():
    """Two sequences, weights e^1.2 (three tokens of .4) and 1 (one token): ess (4.3201)²/(2·(11.0232 + 1)) = .77615,
    at the sequence level; the second is rejected: half of the sequences, a quarter of the tokens."""
    behaviour, sequence = torch.zeros(4), torch.tensor([7, 7, 3, 7])
    proximal, applied = torch.tensor([0.4, 0.4, 0.0, 0.4]), torch.tensor([1.0, 1.0, 0.0, 1.0])
    found = correction_statistics(behaviour, proximal, sequence, applied, level="sequence", high=2.0)
    assert found["ess"] == pytest.approx(0.77615, abs=1e-5)
    assert found["weight_mean"] == pytest.approx((math.exp(1.2) + 1) / 2)
    assert (found["share_above"], found["rejected_sequences"], found["rejected_tokens"]) == (0.5, 0.5, 0.25)
    assert found["applied_ess"] == 0.5
    assert correction_statistics(behaviour, proximal, sequence, applied, level="geometric")["weight_max"] == (
        pytest.approx(math.exp(0.4))
    )


def test_truncation_does_not_flatter_the_effective_sample_size():
    """Weights bounded to 1 look perfect; the raw ones are reported next to them."""
    found = correction_statistics(BEHAVIOUR, PROXIMAL, ONE, torch.ones(3))
    assert found["applied_ess"] == pytest.approx(1.0) and found["ess"] < 0.6


def test_support_lost_is_the_mass_the_sampler_cannot_reach():
    """Sampler (.8, .2, 0), proximal (.6, .3, .1): draws 4 : 1 give w = (.75, 1.5); 1 − (4·.75 + 1.5)/5 = .1."""
    behaviour, proximal = torch.tensor([0.8] * 4 + [0.2]).log(), torch.tensor([0.6] * 4 + [0.3]).log()
    found = correction_statistics(behaviour, proximal, torch.arange(5), torch.ones(5))
    assert found["support_lost"] == pytest.approx(0.1, abs=1e-6)


def test_statistics_at_the_extremes():
    behaviour, proximal = torch.zeros(3), torch.tensor([-math.inf, 50.0, 0.0])
    found = correction_statistics(behaviour, proximal, torch.arange(3), torch.zeros(3))
    assert all(math.isfinite(value) for value in found.values())
    assert found["clamped"] == pytest.approx(2 / 3)
    assert (found["applied_ess"], found["rejected_tokens"], found["rejected_sequences"]) == (0, 1, 1)
    with pytest.raises(ValueError, match="no sites"):
        correction_statistics(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0))
