"""The actor and its critic: values where they belong, fixed for a round; scales of rewards; warm-up; what it starts
from. Expected numbers by hand, or from transformers' own forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.errors import ModelError, RecipeError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.critic import own_critic
from lydian.models.heads import Head
from lydian.models.policy import Policy
from lydian.models.weights import tensors_digest
from lydian.objectives.policy_gradient import clip
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Rollouts
from lydian.training.critic import ActorCritic, Moments, value_statistics, values_around
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.training.terms import CriticSettings, KLInReward
from lydian.verifiers import make_verifier
from tests.training.toys import Letters, engine, llama, problem, sequence

NETWORKS = ("own", "shared")


def settings(**changes) -> StageSettings:
    """Two rounds of two epochs of two steps."""
    critic = {"optimiser": OptimiserSettings(learning_rate=1e-2)} | changes.pop("critic", {})
    defaults = {"rounds": 2, "epochs": 2, "batch_size": 8, "num_samples": 4, "kl": KLInReward(place="reward", coef=0.1)}
    return StageSettings(
        **{"optimiser": OptimiserSettings(learning_rate=1e-2)} | defaults | changes, critic=CriticSettings(**critic)
    )


def source(chosen: StageSettings) -> Rollouts:
    return Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-f]"),
        problems=[problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=chosen.num_samples,
        problems_per_round=0,
        credit=make_credit(ALGORITHMS["ppo"], chosen, max_tokens=4),
        seed=0,
    )


def ppo(chosen: StageSettings) -> ActorCritic:
    learner = make_learner(Policy(llama()), ALGORITHMS["ppo"], chosen, max_tokens=4)
    assert isinstance(learner, ActorCritic)
    return learner


def critics_digest(learner: ActorCritic) -> str:
    return tensors_digest(learner.critic.policy.trainable())


def with_random_head(policy: Policy) -> Policy:
    """A head that is not 0, so that wrong places show."""
    policy.head = Head("value", policy.output.weight.shape[1])
    torch.nn.init.normal_(policy.head.linear.weight, generator=torch.Generator().manual_seed(1))
    return policy


def test_values_stand_before_each_token_and_after_the_last():
    """By transformers alone, one sequence a row: V(t) is read from the state of token t − 1, the bootstrap value from
    the last state."""
    policy = with_random_head(Policy(llama()))
    learner = Learner(policy, objective=clip, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=0.0))
    items = [sequence("fg", "ab"), sequence("fg", "acd"), sequence("h", "e")]
    found = learner.measured(items, functools.partial(values_around, policy))
    for item in items:
        states = policy.model.model(torch.tensor([item.tokens])).last_hidden_state[0]
        value = policy.head(states).tolist()
        trained = [t for t, used in enumerate(item.trained) if used]
        assert [before for before, _ in found[item.id]] == pytest.approx([value[t - 1] for t in trained], abs=1e-5)
        assert found[item.id][-1][1] == pytest.approx(value[-1], abs=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_critic_learns_from_what_has_no_advantage(network: str):
    """A reply that earned what was expected teaches the policy nothing; what was expected, it may still teach."""
    learner = ppo(settings(kl=None, critic={"network": network}))
    streams = dict.fromkeys(("advantage", "proximal_logprobs", "old_value"), (0.0,) * 3) | {"returns": (1.0,) * 3}
    item = replace(sequence("a", "b"), streams=streams, facts={"total_reward": 1.0})
    statistics = learner.accumulate([item])
    assert statistics["value_loss"] == pytest.approx(0.5)
    assert learner.critic.policy.head.linear.bias.grad.item() != 0.0


class Watching(Quiet):
    """Keeps the items of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[Sequence]] = []

    def collected(self, round, collected):
        self.rounds.append(collected.items)


@pytest.mark.parametrize("network", NETWORKS)
def test_old_values_stay_while_the_critic_moves(network: str, monkeypatch: pytest.MonkeyPatch):
    """Every step of a round sees the values that were measured at its start, though the critic has moved since; those
    of the next round are others."""
    chosen, journal, seen = settings(critic={"network": network}), Watching(), []
    learner = ppo(chosen)
    watched = learner.accumulate

    def accumulate(items):
        seen.append({item.id: item.streams["old_value"] for item in items})
        return watched(items)

    monkeypatch.setattr(learner, "accumulate", accumulate)
    train(learner, source(chosen), chosen, journal)
    for round, items in enumerate(journal.rounds):
        start = {item.id: item.streams["old_value"] for item in items}
        for batch in seen[4 * round : 4 * round + 4]:
            assert batch.items() <= start.items()
    first, second = ([value for item in items for value in item.streams["old_value"]] for items in journal.rounds)
    assert set(first) == {0.0}  # a new head
    assert any(abs(value) > 1e-3 for value in second)


@pytest.mark.parametrize("network", NETWORKS)
def test_before_the_first_step_nothing_has_happened(network: str):
    """Ratio 1, no clip of either loss, no KL to the reference; values of 0 explain nothing. Later steps differ."""
    chosen, journal = settings(critic={"network": network}), Quiet()
    train(ppo(chosen), source(chosen), chosen, journal)
    first, last = journal.metrics[0], journal.metrics[-1]
    assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert first["kl_k3"] == pytest.approx(0.0, abs=1e-6)
    assert [first[name] for name in ("clipped_low", "clipped_high", "value_clipped")] == [0.0, 0.0, 0.0]
    assert first["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert first["total_reward"] == pytest.approx(first["reward"], abs=0.3)  # of the step's half of the round
    assert abs(last["ratio"] - 1) > 1e-3 and last["kl_reference"] > 1e-4
    names = {"value_loss", "value_error", "explained_variance", "total_reward", "kl_reference", "kl_k3", "clipped_high"}
    assert all(names <= metrics.keys() for metrics in journal.metrics)
    assert ("critic_gradient_norm" in first) == (network == "own")


@pytest.mark.parametrize("network", NETWORKS)
def test_warm_up_leaves_the_policy_bitwise_as_it_was(network: str):
    """One round in which the critic moves alone (of a shared one the head), then one in which both move."""
    for rounds in (1, 2):
        chosen = settings(rounds=rounds, critic={"network": network, "warmup_rounds": 1})
        learner = ppo(chosen)
        policy, critic = learner.weights().digest, critics_digest(learner)
        journal = Quiet()
        train(learner, source(chosen), chosen, journal)
        assert (learner.weights().digest == policy) == (rounds == 1)
        assert critics_digest(learner) != critic
        assert all("value_loss" in metrics for metrics in journal.metrics)
        assert (journal.metrics[0]["gradient_norm"] == 0.0) == (network == "own")


def rewarded(*rewards: float, round: int = 0) -> list[Sequence]:
    """Replies with these rewards."""
    return [
        replace(sequence("a", "b", id=f"{round}/{k}"), facts={"reward": reward, "is_truncated": 0.0})
        for k, reward in enumerate(rewards)
    ]


def scaled(learner: ActorCritic, *rewards: float) -> list[float]:
    items = learner.with_fixed_policies(rewarded(*rewards), num_steps=1)
    return [item.facts["reward"] for item in items]


def scaling(**critic) -> ActorCritic:
    return ppo(settings(kl=None, critic=critic))


def test_rewards_may_be_scaled_by_the_round():
    """1 3 has the mean 2 and the deviation 1; 10 30 the mean 20 and 10: each round alike."""
    learner = scaling(reward_scale="round")
    assert scaled(learner, 1.0, 3.0) == pytest.approx([-1.0, 1.0])
    assert scaled(learner, 10.0, 30.0) == pytest.approx([-1.0, 1.0])
    assert scaled(learner, 5.0, 5.0) == [0.0, 0.0]


def test_rewards_may_be_scaled_by_all_rounds_so_far():
    """1 3, then 5 7: mean 4 and variance (9 + 1 + 1 + 9)/4 = 5. It is part of the state: another learner goes on."""
    learner, other = scaling(reward_scale="running"), scaling(reward_scale="running")
    assert scaled(learner, 1.0, 3.0) == pytest.approx([-1.0, 1.0])
    other.load_state(learner.state())
    for each in (learner, other):
        assert scaled(each, 5.0, 7.0) == pytest.approx([1 / 5**0.5, 3 / 5**0.5])


def test_rewards_are_bounded_after_their_scale():
    assert scaled(scaling(reward_clip=2.0), 1.0, 3.0, -9.0) == [1.0, 2.0, -2.0]
    assert scaled(scaling(reward_clip=0.5, reward_scale="round"), 1.0, 3.0) == [-0.5, 0.5]


def test_rewards_stay_as_they_are_by_default():
    assert scaled(scaling(), 1.0, 300.0) == [1.0, 300.0]


def test_moments_do_not_depend_on_the_split():
    """Numbers far from 0, whose squares would cancel."""
    values = 1e6 + torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = Moments()
    for part in values.split([1, 60, 0, 39]):
        parts = parts.with_more(part)
    assert parts.num == 100 and parts.mean == pytest.approx(values.mean().item(), rel=1e-15)
    assert parts.squares == pytest.approx(99 * values.var().item(), rel=1e-9)


def test_statistics_by_hand():
    """Tokens with R = 1 2 3 and V = 1 1 1, and R = 0 with V = 0: errors 0 1 2 0 have the mean ¾ and the variance
    (9 + 1 + 25 + 9)/16/4 = 11/16, returns the mean 3/2 and the variance (1 + 1 + 9 + 9)/4/4 = 5/4: 1 − 11/20. Rewards ½
    and −1: mean −¼. KLs .1 .2 .3 0: mean .15 a token, not a mean of means."""
    made = []
    for item, returns, value, kl, total in (
        (sequence("a", "bc"), (1.0, 2.0, 3.0), 1.0, (0.1, 0.2, 0.3), 0.5),
        (sequence("b", ""), (0.0,), 0.0, (0.0,), -1.0),
    ):
        streams = {
            "returns": (0.0, *returns),
            "old_value": (9.0, *(value for _ in returns)),
            "proximal_logprobs": (9.0, *kl),
            "reference_logprobs": (0.0, *(0.0 for _ in kl)),
        }
        made.append(replace(item, streams=streams, facts={"total_reward": total}))
    found = value_statistics(made)
    assert found == pytest.approx({"explained_variance": 1 - 11 / 20, "total_reward": -0.25, "kl_reference": 0.15})
    assert "explained_variance" not in value_statistics(made[1:])  # nothing varies


@pytest.mark.parametrize("network", NETWORKS)
def test_state_comes_back_bitwise(network: str):
    """A round, the state, another round by another learner."""
    chosen = settings(critic={"network": network, "warmup_rounds": 1, "reward_scale": "running"})
    whole, first, second = ppo(chosen), ppo(chosen), ppo(chosen)
    train(whole, source(chosen), chosen)
    middle = train(first, source(chosen), replace(chosen, rounds=1))
    second.load_state(first.state())
    again = source(chosen)
    again.load(second.weights())
    train(second, again, chosen, start=replace(middle, round=1))
    assert second.weights().digest == whole.weights().digest
    assert critics_digest(second) == critics_digest(whole)
    assert second.version == whole.version == 2


def test_restarting_takes_both_back():
    chosen = settings(restart=True, rounds=1)
    learner = ppo(chosen)
    before = learner.weights().digest, critics_digest(learner)
    train(learner, source(chosen), replace(chosen, restart=False))
    assert (learner.weights().digest, critics_digest(learner)) != before
    learner.restart()
    assert (learner.weights().digest, critics_digest(learner)) == before


def values_of(policy: Policy, items: Seq[Sequence]) -> list[float]:
    learner = Learner(policy, objective=clip, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=0.0))
    found = learner.measured(items, functools.partial(values_around, policy))
    return [value for item in items for pair in found[item.id] for value in pair]


def test_an_own_critic_is_a_copy_that_shares_what_is_frozen():
    """With an adapter the base is held once; training the critic leaves the policy as it was."""
    adapted = add_adapter(llama(), AdapterSettings(rank=2, alpha=4.0))
    policy = Policy(adapted)
    critic = own_critic(policy, "")
    theirs = dict(critic.model.named_parameters())
    for name, parameter in adapted.named_parameters():
        assert (theirs[name] is parameter) != parameter.requires_grad
        assert torch.equal(theirs[name], parameter)
    assert critic.head is not None and policy.head is None


def save_model(folder: Path, model, head: Head | None) -> Path:
    """A folder as a stage leaves one, with the smallest tokenizer there is."""
    from tokenizers import Tokenizer, models

    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).save_pretrained(
        folder
    )
    if head is not None:
        head.save(folder)
    return folder


def test_a_critic_starts_from_a_reward_model_and_its_head(tmp_path: Path):
    """V before a token is the reward model's score of the text so far; without a head beside it values are 0."""
    judge = Policy(llama(seed=3))
    head = Head("score", 32)
    torch.nn.init.normal_(head.linear.weight)
    folder = save_model(tmp_path / "rm", judge.model, head)
    critic = own_critic(Policy(llama()), str(folder))
    assert critic.head is not None and critic.head.output == "value"
    judge.head = Head("value", 32)
    judge.head.load_state_dict(head.state_dict())
    items = [sequence("fg", "ab")]
    assert values_of(critic, items) == pytest.approx(values_of(judge, items), abs=1e-5)
    bare = save_model(tmp_path / "bare", judge.model, None)
    assert set(values_of(own_critic(Policy(llama()), str(bare)), items)) == {0.0}


def test_a_critic_does_not_start_from_a_classifier(tmp_path: Path):
    folder = save_model(tmp_path / "classes", llama(), Head("class_logits", 32, 3))
    with pytest.raises(ModelError, match="class_logits"):
        own_critic(Policy(llama()), str(folder))


@pytest.mark.parametrize(
    "wrong",
    [{"clip": 0.0}, {"coef": 0.0}, {"warmup_rounds": -1}, {"reward_clip": -1.0}, {"start": "x", "network": "shared"}],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        CriticSettings(**wrong)


def test_a_critic_for_an_algorithm_without_one_is_refused():
    with pytest.raises(RecipeError, match="critic with grpo"):
        make_learner(Policy(llama()), ALGORITHMS["grpo"], settings(), max_tokens=4)
