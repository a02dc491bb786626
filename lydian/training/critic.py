"""The actor and its critic as one learner.

    round start   reward scale ─▶ old_value, bootstrap_value ─▶ (credit: rewards of tokens, advantages, returns)
    each step     actor: surrogate loss on `advantage`          critic: value loss on `returns`

A critic is a network of its own, with its own optimiser, or a head on the policy's trunk; then both losses are one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lydian.data.forest import Forest, Item, sequences_of
from lydian.data.sequence import Sequence
from lydian.models.policy import Policy
from lydian.models.weights import Weights
from lydian.objectives.loss import Loss
from lydian.objectives.value import value_clipped, value_squared
from lydian.training.credit_critic import at_trained, reference_kl
from lydian.training.learner import Learner
from lydian.training.loop import AnyLearner
from lydian.training.step_facts import mapped, with_stream
from lydian.training.terms import CriticSettings

_NAMES = {f"{loss.__name__}_loss": "value_loss" for loss in (value_squared, value_clipped)}
"""What a mixture calls the part of the critic's loss, and what it is called here, shared or not."""


class ActorCritic:
    """A policy and its value function, as one learner.

    actor     trains the policy
    critic    the learner whose policy has the value head: of a network of its own, or of a shared one, the actor's
    settings  of the critic

    In the first `warmup_rounds` rounds the policy's weights stay as they are, bitwise.
    Statistics beside those of actor and critic: total_reward, reward less the KL and with penalties, a sequence;
    explained_variance, 1 − Var(R − V) / Var(R) over the step's tokens, of the values measured at the round's start;
    kl_reference in nats a token, where it is in the reward; value_loss; critic_gradient_norm, critic_learning_rate.
    """

    def __init__(self, actor: AnyLearner, critic: Learner, settings: CriticSettings) -> None:
        self.actor = actor
        self.critic = critic
        self._settings = settings
        self._is_shared = settings.network == "shared"
        self._num_rounds = 0
        self._rewards = Moments()

    @property
    def policy(self) -> Policy:
        """The policy that is trained and sampled from."""
        return self.actor.policy

    @property
    def version(self) -> int:
        """The weight version last minted."""
        return self.actor.version

    @property
    def is_warming_up(self) -> bool:
        """Whether only the critic trains in this round."""
        return self._num_rounds < self._settings.warmup_rounds

    def with_fixed_policies(self, items: Seq[Item], *, num_steps: int) -> list[Item]:
        """A new round's items with what stays fixed while it is trained on: the actor's policies, values, reward scale.

        old_value        V before each token
        bootstrap_value  V after the last one
        reward           scaled and bounded, as the settings say
        """
        items = self.actor.with_fixed_policies(items, num_steps=num_steps)
        values = self.critic.measured(items, functools.partial(values_around, self.critic.policy))
        items = with_stream(
            items, "old_value", {name: [before for before, _ in pairs] for name, pairs in values.items()}
        )
        return self._with_facts(items, {name: pairs[-1][1] for name, pairs in values.items()})

    def accumulate(self, items: Seq[Item]) -> dict[str, float]:
        """Adds the gradients of both; returns their statistics, and those of the round's values and rewards."""
        statistics = value_statistics(sequences_of(items))
        if self._is_shared or not self.is_warming_up:
            statistics |= self.actor.accumulate(items)
        if self._is_shared and self.is_warming_up:
            self.policy.model.zero_grad(set_to_none=True)  # only the head keeps its gradient
        if not self._is_shared:
            own = self.critic.accumulate(items)
            statistics |= {"value_loss" if name == "loss" else name: value for name, value in own.items()}
        return {_NAMES.get(name, name): value for name, value in statistics.items()}

    def step(self, progress: float) -> dict[str, float]:
        """Applies and clears both gradients."""
        if self._is_shared:
            return self.actor.step(progress)
        own = {f"critic_{name}": value for name, value in self.critic.step(progress).items()}
        if self.is_warming_up:
            return own | {"learning_rate": 0.0, "gradient_norm": 0.0}
        return own | self.actor.step(progress)

    def publish(self) -> Weights:
        """Mints the next version of the policy's weights; the round is over."""
        self._num_rounds += 1
        return self.actor.publish()

    def weights(self) -> Weights:
        """The policy's current weights under the version last minted."""
        return self.actor.weights()

    def restart(self) -> None:
        """Both restart; rounds and rewards are remembered."""
        self.actor.restart()
        if not self._is_shared:
            self.critic.restart()

    def reset_reference(self) -> None:
        """Resets the policy's reference."""
        self.actor.reset_reference()

    def state(self) -> dict[str, Any]:
        """The state of both, rounds done, and what the rewards so far were."""
        return {
            "actor": self.actor.state(),
            "critic": None if self._is_shared else self.critic.state(),
            "num_rounds": self._num_rounds,
            "rewards": [self._rewards.num, self._rewards.mean, self._rewards.squares],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` gave."""
        self.actor.load_state(state["actor"])
        if not self._is_shared:
            self.critic.load_state(state["critic"])
        self._num_rounds = state["num_rounds"]
        self._rewards = Moments(*state["rewards"])

    def _with_facts(self, items: Seq[Item], bootstrap_values: Mapping[str, float]) -> list[Item]:
        rewards = torch.tensor([s.facts["reward"] for s in sequences_of(items)], dtype=torch.float64)
        if self._settings.reward_scale == "running":
            self._rewards = self._rewards.with_more(rewards)
            rewards = self._rewards.standardised(rewards)
        elif self._settings.reward_scale == "round":
            rewards = Moments().with_more(rewards).standardised(rewards)
        bound = self._settings.reward_clip or math.inf
        scaled = dict(zip((s.id for s in sequences_of(items)), rewards.clamp(-bound, bound).tolist(), strict=True))

        def widened(sequence: Sequence) -> Sequence:
            facts = {"reward": scaled[sequence.id], "bootstrap_value": bootstrap_values[sequence.id]}
            return replace(sequence, facts={**sequence.facts, **facts})

        return mapped(items, widened)


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and summed squared deviation of all numbers so far.

    Source: Chan, Golub & LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances".

    >>> Moments().with_more(torch.tensor([1.0, 3.0])).with_more(torch.tensor([5.0]))
    Moments(num=3, mean=3.0, squares=8.0)
    """

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def with_more(self, values: Tensor) -> Moments:
        """The moments of these and of those before."""
        more = len(values)
        if not more:
            return self
        num, gap = self.num + more, values.mean().item() - self.mean
        squares = self.squares + (values - values.mean()).square().sum().item() + gap**2 * self.num * more / num
        return Moments(num, self.mean + gap * more / num, squares)

    def standardised(self, values: Tensor) -> Tensor:
        """(v − mean) / (std + 1e-8), with the population's standard deviation."""
        return (values - self.mean) / (math.sqrt(self.squares / max(self.num, 1)) + 1e-8)


def value_statistics(sequences: Seq[Sequence]) -> dict[str, float]:
    """What the round's values and rewards say of the sequences of a step; see `ActorCritic`."""
    returns = at_trained(sequences, "returns")
    error, spread = returns - at_trained(sequences, "old_value"), returns.var(correction=0).item()
    statistics = {"total_reward": sum(s.facts["total_reward"] for s in sequences) / len(sequences)}
    if spread > 0:  # equal returns leave nothing to explain
        statistics["explained_variance"] = 1 - error.var(correction=0).item() / spread
    if {"proximal_logprobs", "reference_logprobs"} <= sequences[0].streams.keys():
        statistics["kl_reference"] = reference_kl(sequences).mean().item()
    return statistics


def values_around(policy: Policy, forest: Forest) -> Tensor:
    """[n, 2]: V before and V after the token of each site."""
    states, head = policy.states(forest), policy.head
    assert head is not None  # a critic has one
    return torch.stack([head(states[forest.sites.source]), head(states[forest.sites.after])], dim=-1)


def value_loss(settings: CriticSettings) -> Callable[..., Loss]:
    """The value loss that the settings name, with its bound."""
    return value_squared if settings.loss == "squared" else functools.partial(value_clipped, value_clip=settings.clip)
