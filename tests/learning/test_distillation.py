"""Does distillation teach? The bundled tiny model teaches a spoilt copy of itself, and a random Llama of letters
another; the same assertions fail for losses broken on purpose."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lydian.data.arithmetic import arithmetic_solutions
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.models.load import LoadedModel, load_model
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.objectives.distillation import forward_kl, jensen_shannon, reverse_kl, sampled_reverse_kl
from lydian.objectives.loss import Loss
from lydian.text.encode import encode_items
from lydian.text.template import make_template
from lydian.training.collect import Corpus, Rollouts
from lydian.training.credit_teacher import Taught
from lydian.training.given import WithGiven
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from tests.training.toys import VOCABULARY, Letters, engine, llama, problem, sequence

# ── On given text: a spoilt tiny model finds back to the tiny model ─────────────────────────────────────────────────


def spoilt() -> LoadedModel:
    """The tiny model with noise of half their deviation on all its matrices."""
    loaded = load_model("tiny")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.ndim == 2:
                parameter += 0.5 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return loaded


def divergences(student: torch.nn.Module, teacher: torch.nn.Module, texts: list[Sequence]) -> tuple[float, float]:
    """Mean forward and reverse KL a trained token, by transformers and torch alone."""
    sums, num = torch.zeros(2), 0
    for text in texts:
        used = torch.tensor(text.trained[1:])
        with torch.no_grad():
            s, t = (m(torch.tensor([text.tokens])).logits[0, :-1][used].log_softmax(-1) for m in (student, teacher))
        sums += torch.stack([(t.exp() * (t - s)).sum(), (s.exp() * (s - t)).sum()])
        num += int(used.sum())
    return tuple((sums / num).tolist())  # type: ignore[return-value]


@functools.cache
def distilled(objective: Callable[..., Loss]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Forward and reverse KL on held-out worked solutions, before and after 12 steps on others."""
    student, original = spoilt(), load_model("tiny")
    template = make_template("plain", original.tokenizer, prompt="{question}\nSteps:")
    texts, heldout = (
        list(encode_items(arithmetic_solutions(num=num, split=split), template))
        for num, split in ((96, "train"), (16, "heldout"))
    )
    before = divergences(student.model, original.model, heldout)
    learner = Learner(
        Policy(student.model),
        objective=objective,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-3, schedule="cosine", warmup_share=0.1),
        teacher=Teacher.of(load_model("tiny"), student),
    )
    train(learner, Corpus(texts), StageSettings(epochs=2, batch_size=16), Quiet(), seed=0)
    return before, divergences(student.model, original.model, heldout)


def finds_back(objective: Callable[..., Loss]) -> bool:
    """Both divergences fall to a third or less on text that it never saw."""
    before, after = distilled(objective)
    return all(b > 1 and a < b / 3 for b, a in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("objective", [forward_kl, reverse_kl])
def test_a_student_finds_its_teachers_distributions(objective: Callable[..., Loss]):
    assert finds_back(objective)


def one_site_late(logits: Tensor, teacher_logits: Tensor) -> Loss:
    return forward_kl(logits, teacher_logits.roll(1, dims=0))


def away(logits: Tensor, teacher_logits: Tensor) -> Loss:
    loss, statistics = reverse_kl(logits, teacher_logits)
    return Loss(-loss, statistics)


def own_teacher(logits: Tensor, teacher_logits: Tensor) -> Loss:
    return forward_kl(logits, logits.detach())


@pytest.mark.slow
@pytest.mark.parametrize("broken", [one_site_late, away, own_teacher])
def test_broken_losses_do_not(broken: Callable[..., Loss]):
    """The teacher's distribution of the site before; the sign; the student as its own teacher."""
    assert not finds_back(broken)


# ── On its own samples: a random Llama of letters is taught by another ──────────────────────────────────────────────


def strict_teacher() -> Teacher:
    """A random Llama whose weights are so large that it has strong opinions."""
    model = llama(seed=1).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            parameter.mul_(40.0 if "lm_head" in name else 4.0)
    return Teacher(policy=Policy(model), num_tokens=VOCABULARY)


def likelihood(source: Rollouts, teacher: Teacher) -> float:
    """Mean log T of the tokens that the student samples in a round that no training has."""
    items = Taught(is_estimated=True).items(source.collect(99).groups, {})
    total, num = 0.0, 0
    for item in items:
        assert isinstance(item, Sequence)
        with torch.no_grad():
            logprobs = teacher.policy.model(torch.tensor([item.tokens])).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(1, torch.tensor(item.tokens[1:])[:, None]).squeeze(1)
        total += picked[torch.tensor(item.trained[1:])].sum().item()
        num += item.num_trained
    return total / num


def practise(objective: Callable[..., Loss], *, on_policy_share: float = 1.0) -> tuple[float, float]:
    """The teacher's likelihood of the student's samples, in nats a token, before and after 40 rounds of one step."""
    teacher = strict_teacher()
    learner = Learner(
        Policy(llama()),
        objective=objective,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-2),
        teacher=teacher,
    )
    rollouts = Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=None,
        problems=[problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=16,
        problems_per_round=0,
        credit=Taught(is_estimated="teacher_logprobs" in learner.needs),
        seed=0,
    )
    texts = [sequence(question, reply) for question in "fghi" for reply in ("abc", "kzka")]
    source = WithGiven(rollouts=rollouts, given=texts, on_policy_share=on_policy_share)
    before = likelihood(rollouts, teacher)
    train(learner, source, StageSettings(rounds=40), Quiet(), seed=0)
    return before, likelihood(rollouts, teacher)


def is_learned(likelihoods: tuple[float, float]) -> bool:
    """To the strict teacher a token of the samples became e^4 times likelier than those drawn at random, e^-9.9."""
    before, after = likelihoods
    return before < -9 and after > before + 4


def test_on_policy_distillation_makes_samples_likely_to_the_teacher():
    assert is_learned(practise(sampled_reverse_kl))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_gkd_does_so_with_and_without_given_text(share: float):
    assert is_learned(practise(jensen_shannon, on_policy_share=share))


def swapped(logprobs: Tensor, teacher_logprobs: Tensor) -> Loss:
    """The advantage log S − log T."""
    loss, statistics = sampled_reverse_kl(logprobs, 2 * logprobs.detach() - teacher_logprobs)
    return Loss(loss, statistics)


def of_the_token_before(logprobs: Tensor, teacher_logprobs: Tensor) -> Loss:
    return sampled_reverse_kl(logprobs, teacher_logprobs.roll(1))


@pytest.mark.parametrize("broken", [swapped, of_the_token_before])
def test_broken_on_policy_distillation_does_not(broken: Callable[..., Loss]):
    assert not is_learned(practise(broken))
