"""PPO's rows: expected gradients by exact enumeration, early stop, and a resume that is bitwise.

The enumeration is that of test_estimators: 64 completions of a random Llama over 4 tokens, each once in the step with
its advantages multiplied by its probability, against the gradient of the expected reward from the model's plain logits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.models.policy import Policy
from lydian.models.weights import tensors_digest
from lydian.objectives.policy_gradient import clip
from lydian.objectives.returns import gae
from lydian.training.algorithms import ALGORITHMS
from lydian.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydian.training.collect import Rollouts
from lydian.training.credit_critic import ValueBaseline
from lydian.training.critic import ActorCritic
from lydian.training.loop import Position, Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.training.step_facts import with_stream
from lydian.training.terms import CriticSettings, KLInReward, PretrainingLoss
from lydian.verifiers import make_verifier
from tests.training import test_estimators as exact
from tests.training import toys

# ── Expected gradients ──────────────────────────────────────────────────────────────────────────────────────────────


def perfect_values(model, reward: Tensor = exact.REWARD) -> Tensor:
    """V(prefix) = E[R | prefix] before each of the three tokens, [64, 3], by the completions that share the prefix."""
    size = len(exact.COMPLETIONS)
    joint = exact.probabilities(model)
    columns = []
    for length in range(exact.LENGTH):
        shape = (exact.TOKENS**length, -1)
        value = (joint * reward).view(shape).sum(1) / joint.view(shape).sum(1)
        columns.append(value.repeat_interleave(size // exact.TOKENS**length))
    return torch.stack(columns, dim=1)


def credited(items: Seq[Sequence], values: Tensor, **settings) -> list[Sequence]:
    """The completions with advantages against these values."""
    by_id = {item.id: row for item, row in zip(items, values.tolist(), strict=True)}
    items = [
        replace(item, facts={**item.facts, "bootstrap_value": 0.0}) for item in with_stream(items, "old_value", by_id)
    ]
    kl = settings.pop("kl", None)
    credit = ValueBaseline(advantage=functools.partial(gae, **settings), kl=kl, is_whitened=False)
    return credit.assign(items)


def actors_gradient(model, values: Tensor, gae_lambda: float) -> exact.Gradient:
    """The expected direction of the actor's update."""
    items = credited(exact.completions(model), values, gae_lambda=gae_lambda)
    return exact.estimated(model, exact.weighted(items, exact.probabilities(model)), clip)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_with_a_perfect_critic_the_gradient_is_exact_for_every_lambda(gae_lambda: float):
    """E[δ_t | y_≤t] = Q − V, so each λ gives ∇ E[R]."""
    model = exact.llama()
    found = actors_gradient(model, perfect_values(model), gae_lambda)
    assert exact.distance(found, exact.true_gradient(model)) < exact.CLOSE


def test_with_lambda_one_and_no_values_it_is_reinforce():
    """Every token's advantage is the reward of the completion."""
    model = exact.llama()
    found = actors_gradient(model, torch.zeros(len(exact.COMPLETIONS), exact.LENGTH), 1.0)
    assert exact.distance(found, exact.from_advantage(model, exact.REWARD)) < 1e-6
    assert exact.distance(found, exact.true_gradient(model)) < exact.CLOSE


def test_a_wrong_critic_biases_small_lambdas_and_not_one():
    """With λ = 1 a value is a baseline of the prefix, of mean 0 whatever it is; with λ = 0 it stands for the future."""
    model = exact.llama()
    wrong = perfect_values(model, torch.rand(64, generator=torch.Generator().manual_seed(9), dtype=torch.float64))
    truth = exact.true_gradient(model)
    assert exact.distance(actors_gradient(model, wrong, 1.0), truth) < 2 * exact.CLOSE
    assert exact.distance(actors_gradient(model, wrong, 0.0), truth) > 0.1


def test_kl_on_tokens_is_the_gradient_of_the_sequences_kl():
    """∇(E[R] − β KL(π ‖ π_reference)): each token gets the KL of itself and of what follows."""
    kl = KLInReward(place="reward", coef=0.4)
    model, reference = exact.llama(), exact.llama(seed=2)
    learner = exact.make_learner(exact.model_with(model, reference), clip, kl=kl)
    exact.model_with(model, exact.llama())  # the reference was taken; now the policy moves away from it
    items = learner.with_fixed_policies(exact.completions(model), num_steps=1)
    items = credited(items, torch.zeros(len(exact.COMPLETIONS), exact.LENGTH), gae_lambda=1.0, kl=kl)
    model.zero_grad()
    learner.accumulate(exact.weighted(items, exact.probabilities(model)))
    found = {name: torch.zeros_like(p) if p.grad is None else -p.grad for name, p in model.named_parameters()}
    reward = (exact.plain_logprobs(model).sum(1).exp() * exact.REWARD).sum()
    stated = exact.gradient_of(model, reward - kl.coef * exact.sequence_kl(model, reference))
    assert exact.distance(found, stated) < exact.CLOSE
    assert exact.distance(found, exact.true_gradient(model)) > 0.1


# ── A stage ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [toys.sequence(letter, "abc", id=f"text {letter}") for letter in "jklmnopq"]


def settings(**changes) -> StageSettings:
    """Two rounds of three epochs of two steps, all that has a state switched on."""
    critic = {"optimiser": OptimiserSettings(learning_rate=1e-2), "reward_scale": "running", "warmup_rounds": 1}
    defaults = {
        "optimiser": OptimiserSettings(learning_rate=1e-2),
        "rounds": 3,
        "epochs": 3,
        "batch_size": 8,
        "num_samples": 4,
        "kl": KLInReward(place="reward", coef=0.1),
        "ptx": PretrainingLoss(coef=0.5, data="texts", batch_size=3),
        "target_kl": 0.05,
        "checkpoint_steps": 1,
        "critic": CriticSettings(**critic | changes.pop("critic", {})),
    }
    return StageSettings(**defaults | changes)


def source(chosen: StageSettings) -> Rollouts:
    return Rollouts(
        engine=toys.engine(),
        template=toys.Letters(),
        verifier=make_verifier("pattern", pattern="[a-f]"),
        problems=[toys.problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=chosen.num_samples,
        problems_per_round=0,
        credit=make_credit(ALGORITHMS["ppo"], chosen, max_tokens=4),
        seed=0,
    )


def ppo(chosen: StageSettings) -> ActorCritic:
    learner = make_learner(Policy(toys.llama()), ALGORITHMS["ppo"], chosen, max_tokens=4, texts=TEXTS, seed=5)
    assert isinstance(learner, ActorCritic)
    return learner


class Saving(Quiet):
    """Writes every checkpoint to disk, as a run does, and keeps the events."""

    def __init__(self, folder: Path, learner: ActorCritic) -> None:
        super().__init__()
        self.folder, self.learner = folder, learner
        self.positions: list[Position] = []
        self.events: list[tuple[str, str]] = []

    def checkpoint(self, position: Position) -> None:
        self.positions.append(position)
        stored = Checkpoint(stage=1, is_done=False, position=position, seconds=0.0, learner=self.learner.state())
        save_checkpoint(self.folder / f"{position.step}.pt", stored)

    def event(self, kind: str, message: str) -> None:
        self.events.append((kind, message))


def digests(learner: ActorCritic) -> tuple[str, str, int]:
    return learner.weights().digest, tensors_digest(learner.critic.policy.trainable()), learner.version


@pytest.mark.parametrize("network", ["own", "shared"])
def test_a_stage_killed_anywhere_ends_bitwise_the_same(network: str, tmp_path: Path):
    """From every checkpoint, within rounds and between them, by a learner and a source of a new process: the same
    metrics of the steps that are left and the same weights of both. A warm-up, an early stop, the reward's running
    scale and the walk through given text lie on the way."""
    chosen = settings(critic={"network": network})
    learner = ppo(chosen)
    journal = Saving(tmp_path, learner)
    train(learner, source(chosen), chosen, journal, seed=3)
    assert {kind for kind, _ in journal.events} == {"early_stop"}
    assert len(journal.metrics) < 18
    assert {position.round for position in journal.positions if position.items is not None} == {0, 1, 2}
    for position in journal.positions[:: 1 + len(journal.positions) // 4]:
        stored = load_checkpoint(tmp_path / f"{position.step}.pt")
        assert stored is not None and stored.position == position
        again, notes, start = ppo(chosen), Quiet(), source(chosen)
        again.load_state(stored.learner)
        start.load(again.weights())
        train(again, start, chosen, notes, seed=3, start=stored.position)
        assert notes.metrics == journal.metrics[position.step :]
        assert digests(again) == digests(learner)


def test_an_epoch_that_went_too_far_is_the_rounds_last(tmp_path: Path):
    """The event names the epoch and the bound; the epochs before stayed within it."""
    chosen = settings(rounds=1, critic={"warmup_rounds": 0}, ptx=None)
    learner = ppo(chosen)
    journal = Saving(tmp_path, learner)
    train(learner, source(chosen), chosen, journal, seed=3)
    ends = [metrics["epoch_kl"] for metrics in journal.metrics if "epoch_kl" in metrics]
    ((kind, message),) = journal.events
    assert kind == "early_stop" and f"epoch {len(ends)} of 3" in message and "target_kl = 0.05" in message
    assert len(journal.metrics) == 2 * len(ends) < 6
    assert ends[-1] > 0.05 and all(end <= 0.05 for end in ends[:-1])
    assert learner.version == 1


def test_a_target_kl_without_a_ratio_is_refused():
    chosen = StageSettings(target_kl=0.1)
    with pytest.raises(RecipeError, match="target_kl with reinforce"):
        make_learner(Policy(toys.llama()), ALGORITHMS["reinforce"], chosen, max_tokens=4)


def test_ppo_reads_any_verifiers_reward():
    """A score beyond [0, 1], as a reward model gives, reaches the returns as it is: λ = 1, no KL, no discount."""
    chosen = settings(kl=None, critic={"reward_scale": "none"})
    credit = make_credit(ALGORITHMS["ppo"], chosen, advantage={"gae_lambda": 1.0}, max_tokens=4)
    items = ppo(chosen).with_fixed_policies(credit.items([toys.group("a", ("bc", -7.25))], {}), num_steps=1)
    (sequence,) = credit.assign(items)
    assert sequence.streams["returns"][1:] == (-7.25, -7.25, -7.25)
