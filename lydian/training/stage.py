"""What a row of the table and its settings make: the learner and the credit assignment of a stage."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from lydian.models.policy import Policy
from lydian.training.algorithms import Algorithm
from lydian.training.credit import Credit, Imitation, PolicyGradient
from lydian.training.learner import Learner
from lydian.training.settings import StageSettings
from lydian.training.terms import KLInReward

NO_SETTINGS: Mapping[str, Any] = {}


def make_learner(
    policy: Policy,
    algorithm: Algorithm,
    settings: StageSettings,
    *,
    objective: Mapping[str, Any] = NO_SETTINGS,
    max_tokens: int | None = None,
    version: int = 0,
) -> Learner:
    """The learner of a stage.

    objective   settings of the algorithm's objective; what is left out has the function's default
    max_tokens  limit on new tokens of the stage's sampling: the `constant` normaliser's constant unless it is set
    version     weight version that the stage starts from
    """
    constant = settings.constant
    if settings.normaliser == "constant" and constant is None and max_tokens is not None:
        constant = float(max_tokens)
    return Learner(
        policy,
        objective=functools.partial(algorithm.objective, **objective),
        normaliser=settings.normaliser,
        constant=constant,
        optimiser=settings.optimiser,
        kl=settings.kl,
        entropy=settings.entropy,
        correction=settings.correction,
        anchor=settings.anchor,
        batching=settings.batching,
        version=version,
    )


def make_credit(
    algorithm: Algorithm,
    settings: StageSettings,
    *,
    advantage: Mapping[str, Any] = NO_SETTINGS,
    max_tokens: int,
) -> Credit:
    """The credit assignment of an algorithm that samples: advantages, or imitation of what was correct."""
    if algorithm.advantage is None:
        return Imitation(keep_per_problem=settings.keep_per_problem)
    return PolicyGradient(
        advantage=functools.partial(algorithm.advantage, **advantage),
        kl=settings.kl if isinstance(settings.kl, KLInReward) else None,
        max_tokens=max_tokens,
        overlong_buffer=round(settings.overlong_share * max_tokens),
        train_truncated=settings.train_truncated,
    )
