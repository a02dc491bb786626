"""What a row of the table and its settings make: the learner and the credit assignment of a stage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

from lydian.data.forest import Item
from lydian.errors import RecipeError
from lydian.models.critic import own_critic, with_value_head
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.objectives.loss import Loss
from lydian.training.algorithms import Algorithm
from lydian.training.credit import Credit, Imitation, PolicyGradient
from lydian.training.credit_critic import ValueBaseline
from lydian.training.credit_pairs import JudgedFeedback, JudgedPairs
from lydian.training.credit_teacher import Taught
from lydian.training.critic import ActorCritic, value_loss
from lydian.training.learner import Learner
from lydian.training.loop import AnyLearner
from lydian.training.mixture import mixture
from lydian.training.pretraining_mix import PretrainingMix
from lydian.training.settings import StageSettings
from lydian.training.terms import CriticSettings, KLInReward

NO_SETTINGS: Mapping[str, Any] = {}


def make_learner(
    policy: Policy,
    algorithm: Algorithm,
    settings: StageSettings,
    *,
    objective: Mapping[str, Any] = NO_SETTINGS,
    max_tokens: int | None = None,
    version: int = 0,
    teacher: Teacher | None = None,
    texts: Seq[Item] = (),
    seed: int = 0,
) -> AnyLearner:
    """The learner of a stage: of its objective, with what stands beside it, a critic or given text.

    objective   settings of the algorithm's objective; what is left out has the function's default
    max_tokens  limit on new tokens of the stage's sampling: the `constant` normaliser's constant unless it is set
    version     weight version that the stage starts from
    teacher     of an algorithm that distils
    texts       given text for a pretraining loss, encoded
    seed        of the order of those texts
    """
    assert algorithm.objective is not None  # a row without one has no learner
    require_used(algorithm, settings)
    constant = settings.constant
    if settings.normaliser == "constant" and constant is None and max_tokens is not None:
        constant = float(max_tokens)
    loss: Callable[..., Loss] = functools.partial(algorithm.objective, **objective)
    critic = critic_settings(algorithm, settings)
    if critic is not None and critic.network == "shared":
        policy = with_value_head(policy)
        loss = mixture({loss: 1.0, value_loss(critic): critic.coef})
    learner_of = functools.partial(
        Learner,
        normaliser=settings.normaliser,
        constant=constant,
        batching=settings.batching,
        can_restart=settings.restart,
    )
    learner = learner_of(
        policy,
        objective=loss,
        optimiser=settings.optimiser,
        kl=settings.kl,
        entropy=settings.entropy,
        correction=settings.correction,
        anchor=settings.anchor,
        version=version,
        teacher=teacher,
        reference_logprobs=settings.reference_logprobs,
    )
    actor: AnyLearner = learner
    if settings.ptx is not None:
        actor = PretrainingMix(learner, texts, settings.ptx, seed=seed, batching=settings.batching)
    if critic is None:
        return actor
    if critic.network == "own":
        learner = learner_of(own_critic(policy, critic.start), objective=value_loss(critic), optimiser=critic.optimiser)
    return ActorCritic(actor, learner, critic)


def critic_settings(algorithm: Algorithm, settings: StageSettings) -> CriticSettings | None:
    """Of the critic that the algorithm has; None if it has none."""
    return (settings.critic or CriticSettings()) if algorithm.credit == "critic" else None


def require_used(algorithm: Algorithm, settings: StageSettings) -> None:
    """Raises RecipeError for a setting that would do nothing with this algorithm."""
    for name, value, is_used, expected in (
        ("critic", settings.critic, algorithm.credit == "critic", "an algorithm with a critic, such as ppo"),
        (
            "target_kl",
            settings.target_kl,
            "proximal_logprobs" in algorithm.needs,
            "one with a ratio to the round's first policy",
        ),
    ):
        if value is not None and not is_used:
            raise RecipeError(where=name, given=f"{name} with {algorithm.name}", expected=expected, fix="Leave it out.")


def make_credit(
    algorithm: Algorithm,
    settings: StageSettings,
    *,
    advantage: Mapping[str, Any] = NO_SETTINGS,
    max_tokens: int,
) -> Credit:
    """The credit assignment of an algorithm that samples, by the name in its row."""
    if algorithm.credit == "teacher":
        is_estimated = "teacher_logprobs" in algorithm.needs
        return Taught(is_estimated=is_estimated, train_truncated=settings.train_truncated)
    if algorithm.credit == "pairs":
        return JudgedPairs(rules=settings.pairs, train_truncated=settings.train_truncated)
    if algorithm.credit == "feedback":
        return JudgedFeedback(train_truncated=settings.train_truncated)
    if algorithm.credit == "imitation":
        return Imitation(keep_per_problem=settings.keep_per_problem)
    assert algorithm.advantage is not None  # what has the credit `group` or `critic` names its advantage
    critic = critic_settings(algorithm, settings)
    if critic is None:
        credit_of: Callable[..., Credit] = PolicyGradient
    else:
        credit_of = functools.partial(ValueBaseline, is_whitened=critic.is_whitened, bootstraps=critic.bootstraps)
    return credit_of(
        advantage=functools.partial(algorithm.advantage, **advantage),
        kl=settings.kl if isinstance(settings.kl, KLInReward) else None,
        max_tokens=max_tokens,
        overlong_buffer=round(settings.overlong_share * max_tokens),
        train_truncated=settings.train_truncated,
    )
