"""Divergences to a teacher: worked by hand, by the limits of β, and by what lumping tokens may and may not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lydian.objectives.distillation import forward_kl, jensen_shannon, reverse_kl, sampled_reverse_kl

STUDENT, TEACHER = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()


def random_logits(seed: int, n: int = 4, v: int = 7) -> Tensor:
    return 2 * torch.randn(n, v, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_tokens_by_hand():
    """T = (.9, .1), S = (½, ½). KL(T ‖ S) = .9 log 1.8 + .1 log .2 = .3681; KL(S ‖ T) = ½ log(5/9) + ½ log 5 = .5108.
    M = (.7, .3): ½ (.9 log(9/7) + .1 log(1/3)) + ½ (½ log(5/7) + ½ log(5/3)) = ½ (.1163 + .0872) = .1017."""
    assert forward_kl(STUDENT, TEACHER).loss.item() == pytest.approx(0.3681, abs=5e-5)
    assert reverse_kl(STUDENT, TEACHER).loss.item() == pytest.approx(0.5108, abs=5e-5)
    assert jensen_shannon(STUDENT, TEACHER).loss.item() == pytest.approx(0.1017, abs=5e-5)
    for loss in (forward_kl, reverse_kl, jensen_shannon):
        statistics = loss(STUDENT, TEACHER).statistics
        assert statistics["kl_forward"].item() == pytest.approx(0.3681, abs=5e-5)
        assert statistics["kl_reverse"].item() == pytest.approx(0.5108, abs=5e-5)


def test_beta_is_the_teachers_share_of_the_mixture():
    """β = ¼: M = ¼ T + ¾ S = (.6, .4): ¼ (.9 log 1.5 + .1 log ¼) + ¾ (½ log(5/6) + ½ log(5/4)) = .0719."""
    assert jensen_shannon(STUDENT, TEACHER, beta=0.25).loss.item() == pytest.approx(
        0.25 * 0.226289 + 0.75 * 0.020411, abs=1e-5
    )


@pytest.mark.parametrize(("beta", "limit"), [(1e-6, forward_kl), (1 - 1e-6, reverse_kl)])
def test_its_slopes_at_the_ends_are_the_two_kls(beta: float, limit):
    """JSD_β / β → KL(T ‖ S) as β → 0, JSD_β / (1 − β) → KL(S ‖ T) as β → 1."""
    student, teacher = random_logits(0), random_logits(1)
    scaled = jensen_shannon(student, teacher, beta=beta).loss / min(beta, 1 - beta)
    torch.testing.assert_close(scaled, limit(student, teacher).loss, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
def test_beta_at_its_ends_is_refused(beta: float):
    with pytest.raises(ValueError, match="forward_kl or reverse_kl"):
        jensen_shannon(STUDENT, TEACHER, beta=beta)


def test_temperature_softens_both():
    """At T = 2 the distributions are those of halved logits."""
    student, teacher = random_logits(0), random_logits(1)
    for loss in (forward_kl, reverse_kl, jensen_shannon):
        torch.testing.assert_close(loss(student, teacher, temperature=2.0).loss, loss(student / 2, teacher / 2).loss)


def test_lumping_never_makes_it_larger_and_all_tokens_are_the_whole():
    student, teacher = random_logits(0), random_logits(1)
    for loss in (forward_kl, reverse_kl, jensen_shannon):
        whole = loss(student, teacher).loss
        values = [loss(student, teacher, top_k=k).loss for k in (1, 3, 6, 7)]
        for fewer, more in zip(values, [*values[1:], whole], strict=True):
            assert (fewer <= more + 1e-12).all()
        torch.testing.assert_close(values[-1], whole)
        torch.testing.assert_close(values[-2], whole)  # six of seven tokens: the rest is the seventh


def test_top_k_by_hand():
    """k = 1: T = (.9, rest .1), S = (.5, rest .5), whatever the rest is made of."""
    student, teacher = torch.tensor([[0.5, 0.2, 0.3]]).log(), torch.tensor([[0.9, 0.06, 0.04]]).log()
    assert forward_kl(student, teacher, top_k=1).loss.item() == pytest.approx(0.3681, abs=5e-5)


def test_the_sampled_estimator_is_the_exact_one_in_expectation():
    """Σ_v S(v) · value = KL(S ‖ T), and Σ_v S(v) · gradient = its gradient."""
    logits, teacher = random_logits(0, n=1)[0], random_logits(1, n=1)[0].log_softmax(-1)
    by_sample = logits.clone().requires_grad_()
    logprobs = by_sample.log_softmax(-1)
    expected = (logprobs.exp().detach() * sampled_reverse_kl(logprobs, teacher).loss).sum()
    (estimated,) = torch.autograd.grad(expected, by_sample)
    exact = logits.clone().requires_grad_()
    divergence = reverse_kl(exact[None], teacher[None]).loss.sum()
    (truth,) = torch.autograd.grad(divergence, exact)
    torch.testing.assert_close(expected, divergence)
    torch.testing.assert_close(estimated, truth)


def test_another_vocabulary_is_refused():
    """By the shapes where they are checked, else by a message that says what to do."""
    with pytest.raises((ValueError, TypeError), match=r"same vocabulary|teacher_logits"):
        forward_kl(torch.zeros(1, 8), torch.zeros(1, 10))
