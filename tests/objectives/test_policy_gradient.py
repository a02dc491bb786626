"""Policy-gradient losses against numbers worked by hand, their gradients, and what every one of them must keep."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lydian.objectives.policy_gradient import cispo, clip, gmpo, gspo, gspo_token, ratio, reinforce, sapo

Objective = Callable[[Tensor, Tensor, Tensor, Tensor], "tuple[Tensor, dict[str, Tensor]]"]

ALL: dict[str, Objective] = {
    "reinforce": lambda x, p, a, s: reinforce(x, a),
    "ratio": lambda x, p, a, s: ratio(x, p, a),
    "clip": lambda x, p, a, s: clip(x, p, a),
    "clip dual": lambda x, p, a, s: clip(x, p, a, dual_clip=3.0),
    "gspo": lambda x, p, a, s: gspo(x, p, a, s, clip_low=0.2, clip_high=0.2),
    "gspo_token": lambda x, p, a, s: gspo_token(x, p, a, s, clip_low=0.2, clip_high=0.2),
    "gmpo": lambda x, p, a, s: gmpo(x, p, a, s),
    "sapo": lambda x, p, a, s: sapo(x, p, a),
    "cispo": lambda x, p, a, s: cispo(x, p, a, ratio_cap=2.0),
}
WITH_RATIO = [name for name in ALL if name != "reinforce"]
SEQUENCE = torch.tensor([0, 1, 0, 1, 0])
ADVANTAGE = torch.tensor([0.7, -1.3, 0.7, -1.3, 0.7])
LOGPROBS = torch.tensor([-1.0, -2.0, -0.5, -1.5, -0.1])


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    return torch.autograd.grad(loss(at).sum(), at)[0]


def logs(*ratios: float) -> Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_clip_three_tokens():
    """ε = 0.2; (π_old, π, A) = (.25, .40, .5), (.30, .60, −.5), (.50, .30, −.5): ratios 1.6, 2, 0.6.

    1.6·.5 is above 1.2·.5 = .6: clipped, no gradient. 2·(−.5) = −1 is below 1.2·(−.5): alive, gradient of the loss
    −rA = .5·r, d/dlogπ = .5·2 = 1. 0.6·(−.5) = −.3 is above .8·(−.5) = −.4: clipped, no gradient."""
    proximal = torch.tensor([0.25, 0.30, 0.50]).log()
    current = torch.tensor([0.40, 0.60, 0.30]).log()
    advantage = torch.tensor([0.5, -0.5, -0.5])
    loss, statistics = clip(current, proximal, advantage, clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(-loss, torch.tensor([0.6, -1.0, -0.4]))
    torch.testing.assert_close(statistics["ratio"], torch.tensor([1.6, 2.0, 0.6]))
    assert statistics["clipped_high"].tolist() == [1, 0, 0]
    assert statistics["clipped_low"].tolist() == [0, 0, 1]
    got = gradient(lambda x: clip(x, proximal, advantage).loss, current)
    torch.testing.assert_close(got, torch.tensor([0.0, 1.0, 0.0]))
    without = ratio(current, proximal, advantage)
    torch.testing.assert_close(-without.loss, torch.tensor([0.8, -1.0, -0.3]))
    torch.testing.assert_close(
        gradient(lambda x: ratio(x, proximal, advantage).loss, current), torch.tensor([-0.8, 1.0, 0.3])
    )


def test_clip_is_asymmetric():
    """Ratio 1.25 with A = 1: inside [0.8, 1.28] it is 1.25; inside [0.8, 1.2] it is 1.2. Ratio .75 with A = −1: inside
    [.7, 1.2] it is .75, inside [.8, 1.2] it is .8."""
    zero, up, down = torch.zeros(1), torch.tensor([math.log(1.25)]), torch.tensor([math.log(0.75)])
    assert clip(up, zero, torch.ones(1), clip_high=0.28).loss.item() == pytest.approx(-1.25)
    assert clip(up, zero, torch.ones(1), clip_high=0.2).loss.item() == pytest.approx(-1.2)
    assert clip(down, zero, -torch.ones(1), clip_low=0.3).loss.item() == pytest.approx(0.75)
    assert clip(down, zero, -torch.ones(1), clip_low=0.2).loss.item() == pytest.approx(0.8)


def test_dual_clip():
    """c = 3, A = −1, ratios .5, 2, 5: objectives −.8 (lower bound), −2, max(−5, −3) = −3: the last has no gradient.
    With A = 1 the dual bound does nothing."""
    at, zero, down = logs(0.5, 2.0, 5.0), torch.zeros(3, dtype=torch.float64), -torch.ones(3, dtype=torch.float64)
    loss, statistics = clip(at, zero, down, dual_clip=3.0)
    torch.testing.assert_close(-loss, doubles(-0.8, -2.0, -3.0))
    assert statistics["clipped_dual"].tolist() == [0, 0, 1] and statistics["clipped_low"].tolist() == [1, 0, 0]
    torch.testing.assert_close(gradient(lambda x: clip(x, zero, down, dual_clip=3.0).loss, at), doubles(0, 2, 0))
    torch.testing.assert_close(clip(at, zero, -down, dual_clip=3.0).loss, clip(at, zero, -down).loss)
    with pytest.raises(ValueError, match="exceed 1"):
        clip(at, zero, down, dual_clip=1.0)


@pytest.mark.parametrize(
    ("advantage", "hard", "name"), [(1.0, (1.0, 1.0, 0.0), "pos"), (-1.0, (0.0, -1.0, -1.0), "neg")]
)
def test_slopes_of_the_soft_gate_and_of_the_hard_clip(advantage: float, hard: tuple[float, ...], name: str):
    """Slope of the objective in r at r = .6, 1, 1.4. Gate at τ = 2: sech²(r − 1) = 1/cosh²(.4) = .8556, 1, .8556, times
    A. Clip, ε = .2: with A = 1 it stops above 1.2, with A = −1 below .8."""
    r, zero = doubles(0.6, 1.0, 1.4), torch.zeros(3, dtype=torch.float64)
    at, a = r.log(), torch.full((3,), advantage, dtype=torch.float64)
    settings = {f"tau_{name}": 2.0}
    soft = -gradient(lambda x: sapo(x, zero, a, **settings).loss, at) / r
    torch.testing.assert_close(soft, advantage * doubles(0.856, 1.0, 0.856), atol=5e-4, rtol=0)
    torch.testing.assert_close(sapo(at, zero, a, **settings).statistics["gate"], soft * advantage)
    torch.testing.assert_close(-gradient(lambda x: clip(x, zero, a).loss, at) / r, doubles(*hard))


def test_sapo_by_hand():
    """f(r) = (4/τ) σ(τ(r − 1)). r = 1: 2/τ. r = 1.5, τ = 1: 4·σ(.5) = 4·.62246 = 2.4898, slope 4·.62246·.37754 = .94.
    Negative advantages take τ = 1.05: 2/1.05 = 1.9048."""
    zero = torch.zeros(1)
    assert sapo(zero, zero, torch.ones(1)).loss.item() == pytest.approx(-2.0)
    assert sapo(zero, zero, -torch.ones(1)).loss.item() == pytest.approx(1.90476, abs=1e-5)
    loss, statistics = sapo(torch.tensor([1.5]).log(), zero, torch.ones(1))
    assert loss.item() == pytest.approx(-2.4898, abs=5e-5) and statistics["gate"].item() == pytest.approx(
        0.94, abs=5e-5
    )


def test_gspo_by_hand():
    """Sequence 0: log-ratios .1, .3, mean .2, s = 1.2214; sequence 1: −.1, s = .9048. A = 1, −1, ε = .2 and .05.
    0: min(1.2214, 1.2) = 1.2, clipped. 1: min(−.9048, −.95) = −.95, clipped. With A = −1, 1 neither is."""
    x, zero, sequence = doubles(0.1, -0.1, 0.3), torch.zeros(3, dtype=torch.float64), torch.tensor([0, 1, 0])
    advantage = doubles(1, -1, 1)
    loss, statistics = gspo(x, zero, advantage, sequence, clip_low=0.05, clip_high=0.2)
    torch.testing.assert_close(loss, doubles(-1.2, 0.95, -1.2))
    assert statistics["clipped_high"].tolist() == [1, 0, 1] and statistics["clipped_low"].tolist() == [0, 1, 0]
    got = gradient(lambda y: gspo(y, zero, advantage, sequence, clip_low=0.05, clip_high=0.2).loss, x)
    assert got.tolist() == [0.0] * 3
    loss, statistics = gspo(x, zero, -advantage, sequence, clip_low=0.05, clip_high=0.2)
    torch.testing.assert_close(loss, doubles(math.exp(0.2), -math.exp(-0.1), math.exp(0.2)))
    torch.testing.assert_close(statistics["ratio"], loss.abs())


def test_gspo_weighs_sequences_not_tokens():
    """Lengths 1 (A = 1) and 9 (A = −1) at ratio 1: the sequence mean is −(1 − 1)/2 = 0; a token mean would be .8."""
    sequence = torch.tensor([0] + [1] * 9)
    advantage = torch.tensor([1.0] + [-1.0] * 9)
    weight = torch.tensor([1 / 2] + [1 / 18] * 9)
    loss = gspo(torch.zeros(10), torch.zeros(10), advantage, sequence).loss
    assert (weight * loss).sum().item() == pytest.approx(0, abs=1e-7)
    assert loss.mean().item() == pytest.approx(0.8)


@pytest.mark.parametrize("clip_high", [0.2, 10.0])
def test_gspo_token_equals_gspo_in_the_sequence_mean(clip_high: float):
    """Value and gradient of Σ weight · loss with weight 1/(2 · length)."""
    proximal, weight = LOGPROBS + torch.tensor([0.3, -0.4, 0.2, 0.1, -0.6]), torch.tensor([6, 4, 6, 4, 6]).reciprocal()

    def total(objective) -> Callable[[Tensor], Tensor]:
        return lambda x: weight * objective(x, proximal, ADVANTAGE, SEQUENCE, clip_high=clip_high).loss

    torch.testing.assert_close(total(gspo)(LOGPROBS).sum(), total(gspo_token)(LOGPROBS).sum())
    torch.testing.assert_close(gradient(total(gspo), LOGPROBS), gradient(total(gspo_token), LOGPROBS))


def test_gspo_token_takes_advantages_per_token():
    """s = e^.2 for both tokens; gradient of token t is −s A_t, and no other token's."""
    x, zero, ids = doubles(0.1, 0.3), torch.zeros(2, dtype=torch.float64), torch.tensor([0, 0])
    advantage = doubles(-1, -0.5)
    loss = gspo_token(x, zero, advantage, ids, clip_high=0.1).loss
    torch.testing.assert_close(loss, math.exp(0.2) * doubles(1, 0.5))
    got = gradient(lambda y: gspo_token(y, zero, advantage, ids, clip_high=0.1).loss, x)
    torch.testing.assert_close(got, math.exp(0.2) * doubles(1, 0.5))


@pytest.mark.parametrize(
    ("advantage", "mean", "alive"), [(1.0, (0.1 + 0.4 - 0.8) / 3, (1, 0, 1)), (-1.0, (0.1 + 0.9 - 0.4) / 3, (1, 1, 0))]
)
def test_gmpo_by_hand(advantage: float, mean: float, alive: tuple[int, ...]):
    """ε = .4, log-ratios .1, .9, −.8. A > 0 bounds from above only: .1, .4, −.8; A < 0 from below only: .1, .9, −.4.
    Loss −A e^mean; each unbounded token has a third of its gradient, and the loss stands at three sites."""
    x, zero, ids = doubles(0.1, 0.9, -0.8), torch.zeros(3, dtype=torch.float64), torch.tensor([0, 0, 0])
    a = torch.full((3,), advantage, dtype=torch.float64)
    loss, statistics = gmpo(x, zero, a, ids)
    torch.testing.assert_close(loss, torch.full_like(x, -advantage * math.exp(mean)))
    torch.testing.assert_close(gradient(lambda y: gmpo(y, zero, a, ids).loss, x), loss * doubles(*alive))
    side = "clipped_high" if advantage > 0 else "clipped_low"
    assert statistics[side].tolist() == [1 - kept for kept in alive]


def test_cispo_by_hand():
    """Cap 2, floor .5, log π = −.5, A = 1: ratios 1, 4, .1 weigh 1, 2, .5; gradients −1, −2, −.5: no token is lost."""
    at = torch.full((3,), -0.5, dtype=torch.float64)
    proximal, ones = at - logs(1.0, 4.0, 0.1), torch.ones(3, dtype=torch.float64)
    loss, statistics = cispo(at, proximal, ones, ratio_cap=2.0, ratio_floor=0.5)
    torch.testing.assert_close(loss, doubles(0.5, 1.0, 0.25))
    got = gradient(lambda x: cispo(x, proximal, ones, ratio_cap=2.0, ratio_floor=0.5).loss, at)
    torch.testing.assert_close(got, doubles(-1, -2, -0.5))
    assert statistics["capped"].tolist() == [0, 1, 0] and statistics["floored"].tolist() == [0, 0, 1]
    assert cispo(at, proximal, ones).loss[2].item() == pytest.approx(0.05)


def test_a_cap_meant_as_an_offset_is_refused():
    one = torch.zeros(1)
    for settings in ({"ratio_cap": 0.2}, {"ratio_floor": 1.5}, {"ratio_floor": -0.1}):
        with pytest.raises(ValueError, match="ratio_floor ≤ 1 ≤ ratio_cap"):
            cispo(one, one, one, **settings)


@pytest.mark.parametrize("name", ALL)
def test_at_the_proximal_policy_every_gradient_is_reinforces(name: str):
    """In the sequence mean, whose weights are 1/(2 · length): r = 1, so the gradient is −weight · A."""
    weight = torch.tensor([6, 4, 6, 4, 6]).reciprocal()
    got = gradient(lambda x: weight * ALL[name](x, LOGPROBS, ADVANTAGE, SEQUENCE)[0], LOGPROBS)
    torch.testing.assert_close(got, -weight * ADVANTAGE)


@pytest.mark.parametrize("name", WITH_RATIO)
def test_statistics(name: str):
    """KL(proximal ‖ current) from the proximal policy's tokens: k1 = −log r, k3 = r − 1 − log r, per token."""
    proximal = LOGPROBS + torch.tensor([0.3, -0.4, 0.2, 0.1, -0.6])
    _, statistics = ALL[name](LOGPROBS.clone().requires_grad_(), proximal, ADVANTAGE, SEQUENCE)
    log_ratio = LOGPROBS - proximal
    torch.testing.assert_close(statistics["kl_k1"], -log_ratio)
    torch.testing.assert_close(statistics["kl_k3"], log_ratio.exp() - 1 - log_ratio)
    assert all(value.shape == (5,) and not value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sign", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(
    ("logprob", "proximal"), [(-50.0, 0.0), (0.0, -50.0), (-math.inf, -1.0), (-1.0, -math.inf), (-math.inf, -math.inf)]
)
def test_extremes_stay_finite(name: str, sign: float, logprob: float, proximal: float):
    at, anchor = torch.tensor([-1.0, logprob]), torch.tensor([-1.0, proximal])
    advantage, ids = torch.full((2,), sign), torch.tensor([0, 0])
    loss, statistics = ALL[name](at, anchor, advantage, ids)
    assert loss.isfinite().all() and all(value.isfinite().all() for value in statistics.values())
    assert gradient(lambda x: ALL[name](x, anchor, advantage, ids)[0], at).isfinite().all()


@pytest.mark.parametrize("name", ALL)
def test_only_logprobs_carry_gradients_and_half_precision_is_raised(name: str):
    at, anchor, advantage = (x.bfloat16().requires_grad_() for x in (LOGPROBS, LOGPROBS + 0.25, ADVANTAGE))
    loss, _ = ALL[name](at, anchor, advantage, SEQUENCE)
    assert loss.dtype == torch.float32
    loss.sum().backward()
    assert at.grad is not None and anchor.grad is None and advantage.grad is None
    torch.testing.assert_close(loss, ALL[name](at.float(), anchor.float(), advantage.float(), SEQUENCE)[0])


@pytest.mark.parametrize("name", ALL)
def test_sequences_do_not_see_each_other(name: str):
    """Taking sequence 1 out, and naming sequence 0 by another number, changes nothing for sequence 0."""
    keep, proximal = SEQUENCE == 0, LOGPROBS + torch.tensor([0.3, -0.4, 0.2, 0.1, -0.6])
    whole = ALL[name](LOGPROBS, proximal, ADVANTAGE, SEQUENCE)[0][keep]
    alone = ALL[name](LOGPROBS[keep], proximal[keep], ADVANTAGE[keep], SEQUENCE[keep] + 5)[0]
    torch.testing.assert_close(whole, alone)
    nothing = torch.zeros(0)
    assert ALL[name](nothing, nothing, nothing, torch.zeros(0, dtype=torch.long))[0].shape == (0,)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("gspo_token", "cispo")])
def test_gradients_by_finite_differences(name: str):
    """The two left out differ from their value's derivative on purpose; their gradients are worked by hand above."""
    at, proximal = LOGPROBS.double(), LOGPROBS.double() + doubles(0.05, -0.03, 0.02, 0.6, -0.7)
    assert torch.autograd.gradcheck(
        lambda x: ALL[name](x, proximal, ADVANTAGE.double(), SEQUENCE)[0], (at.clone().requires_grad_(),)
    )
