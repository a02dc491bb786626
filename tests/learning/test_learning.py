"""Do the losses teach? Random tiny Llamas, seconds each; and the same assertions fail for losses broken on purpose.

Each family has one helper that trains and one that says whether it was learned. A test without its broken twins could
be passed by a loss that teaches something else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lydian.data.sequence import Pair, Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Group
from lydian.models.policy import Policy
from lydian.models.weights import weights_of
from lydian.objectives.advantage import group_mean, group_mean_std, leave_one_out
from lydian.objectives.likelihood import nll
from lydian.objectives.loss import Loss
from lydian.objectives.policy_gradient import clip, reinforce
from lydian.objectives.preference import dpo
from lydian.rollout.sample import sample
from lydian.training.collect import Corpus, Rollouts
from lydian.training.credit import Credit, Imitation, PolicyGradient, sequence_of
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.verifiers import make_verifier
from tests.training.toys import Letters, engine, llama, pair, problem, sequence

# ── Supervised fine-tuning: eight questions, eight replies ──────────────────────────────────────────────────────────

MAPPING = dict(zip("abcdefgh", ("kl", "mn", "op", "qr", "st", "uv", "wx", "yz"), strict=True))


def fit(objective: Callable[..., Loss], items: list[Sequence]) -> Policy:
    learner = Learner(
        Policy(llama()),
        objective=objective,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-2, schedule="cosine", warmup_share=0.1),
    )
    settings = StageSettings(epochs=60)
    train(learner, Corpus(list(items)), settings, Quiet(), seed=0)
    return learner.policy


def answers_all(policy: Policy) -> bool:
    """Greedy decoding gives each question its reply, and ends there."""
    sampler = engine()
    sampler.load(weights_of(policy.model, 1))
    greedy = Sampling(temperature=0.0, max_tokens=4)
    asked = [problem(question) for question in MAPPING]
    found = [t for (t,) in sample(sampler, Letters(), asked, greedy, num_samples=1)]
    texts = [Letters().decode(t.turns[-1].completion.tokens) for t in found]
    return texts == list(MAPPING.values()) and all(t.finish is Finish.STOP for t in found)


def demonstrations() -> list[Sequence]:
    return [sequence(question, reply) for question, reply in MAPPING.items()]


def shifted(s: Sequence, by: int) -> Sequence:
    """The mask of trained tokens, `by` places earlier; the first token cannot be trained."""
    size = len(s.trained)
    return replace(s, trained=tuple(t > 0 and 0 <= t + by < size and s.trained[t + by] for t in range(size)))


def unlikelihood(logprobs: Tensor) -> Loss:
    return Loss(logprobs.clamp(min=-20), {})


def test_sft_learns_a_mapping():
    assert answers_all(fit(nll, demonstrations()))


@pytest.mark.parametrize("broken", ["sign", "mask one early", "mask one late"])
def test_broken_sft_does_not(broken: str):
    """Unlikelihood; the reply without its stop token; the reply without its first letter."""
    by = {"sign": 0, "mask one early": 1, "mask one late": -1}[broken]
    objective = unlikelihood if broken == "sign" else nll
    assert not answers_all(fit(objective, [shifted(s, by) for s in demonstrations()]))


# ── Policy gradients and expert iteration: the verifier rewards replies with an `a` ─────────────────────────────────

REWARDED = make_verifier("pattern", pattern="a")


def practise(objective: Callable[..., Loss], credit: Credit, **settings) -> tuple[float, float]:
    """The reward of the first round and of the last; 4 problems × 16 replies of at most 4 tokens a round."""
    learner = Learner(
        Policy(llama()), objective=objective, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=1e-2)
    )
    source = Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=REWARDED,
        problems=[problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=16,
        problems_per_round=0,
        credit=credit,
        seed=0,
    )
    first = source.collect(0).metrics["reward"]
    train(learner, source, StageSettings(**settings), Quiet(), seed=0)
    return first, source.collect(99).metrics["reward"]


def is_learned(rewards: tuple[float, float]) -> bool:
    """From about one in eight, as chance gives (1 − (31/32)⁴), to nine in ten."""
    before, after = rewards
    return before < 0.3 and after > 0.9


ONE_STEP = {"rounds": 30}
SEVERAL_STEPS = {"rounds": 12, "epochs": 2, "batch_size": 32}
"""Two epochs of two minibatches: the clip's anchor is the policy at the round's start."""


@pytest.mark.parametrize("advantage", [group_mean, leave_one_out])
def test_reinforce_learns_to_emit_the_rewarded_token(advantage: Callable):
    assert is_learned(practise(reinforce, PolicyGradient(advantage=advantage), **ONE_STEP))


def test_grpo_learns_it_with_several_steps_a_round():
    assert is_learned(practise(clip, PolicyGradient(advantage=group_mean_std), **SEVERAL_STEPS))


def test_a_flipped_advantage_does_not():
    def flipped(reward: Tensor, group: Tensor) -> Tensor:
        return -group_mean_std(reward, group)

    assert not is_learned(practise(reinforce, PolicyGradient(advantage=flipped), **ONE_STEP))
    assert not is_learned(practise(clip, PolicyGradient(advantage=flipped), **SEVERAL_STEPS))


def test_a_neighbours_advantage_does_not():
    """Each sample gets the advantage of the one before it."""

    def shifted_by_one(reward: Tensor, group: Tensor) -> Tensor:
        return group_mean_std(reward, group).roll(1)

    assert not is_learned(practise(reinforce, PolicyGradient(advantage=shifted_by_one), **ONE_STEP))


IMITATION = {"rounds": 8, "epochs": 4}


def test_expert_iteration_learns_it_from_its_own_best():
    assert is_learned(practise(nll, Imitation(keep_per_problem=8), **IMITATION))


def test_imitating_what_the_verifier_refused_does_not():
    class WrongOnes(Imitation):
        def items(self, groups: list[Group], greedy_rewards: dict[str, float]) -> list[Sequence]:
            members = [m for group in groups for m in group.members if not m.verdict.is_correct]
            return [sequence_of(m.trajectory, is_imitated=True) for m in members]

    assert not is_learned(practise(nll, WrongOnes(keep_per_problem=8), **IMITATION))


# ── Preferences: `ab` over `cd` ─────────────────────────────────────────────────────────────────────────────────────

PAIRS = [pair(k, question, "ab", "cd") for k, question in enumerate("fghi")]


def prefer(objective: Callable[..., Loss], pairs: list[Pair]) -> Policy:
    learner = Learner(
        Policy(llama()), objective=objective, normaliser="pair_mean", optimiser=OptimiserSettings(learning_rate=3e-3)
    )
    train(learner, Corpus(list(pairs)), StageSettings(epochs=30), Quiet(), seed=0)
    return learner.policy


def log_ratio(policy: Policy, s: Sequence) -> float:
    """Σ log π − log π_reference over the trained tokens, by transformers alone; the reference is the first model."""
    sums = []
    for model in (policy.model, llama()):
        with torch.no_grad():
            logprobs = model(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None]).squeeze(1)
        sums.append(picked[torch.tensor(s.trained[1:])].sum().item())
    return sums[0] - sums[1]


def has_preference(policy: Policy) -> bool:
    """In every pair the chosen reply gained, and gained more than two nats on the rejected one."""
    ratios = [(log_ratio(policy, p.chosen), log_ratio(policy, p.rejected)) for p in PAIRS]
    return all(chosen > 0 and chosen - rejected > 2 for chosen, rejected in ratios)


def test_dpo_raises_the_margin_and_the_chosen_reply():
    assert has_preference(prefer(dpo, PAIRS))


@pytest.mark.parametrize("broken", ["chosen and rejected swapped", "sign", "reference on both sides"])
def test_broken_dpo_does_not(broken: str):
    """The last one compares the policy with itself, so that no gradient is left."""
    pairs = [pair(k, p.chosen.group, "cd", "ab") for k, p in enumerate(PAIRS)] if "swapped" in broken else PAIRS

    @functools.wraps(dpo)
    def objective(logprobs, reference_logprobs, *rest):
        if broken == "reference on both sides":
            logprobs = reference_logprobs + 0 * logprobs
        loss, statistics = dpo(logprobs, reference_logprobs, *rest)
        return Loss(-loss if broken == "sign" else loss, statistics)

    assert not has_preference(prefer(objective, pairs))
