"""THE TABLE: an algorithm is a row. Same learner, same loop; a row names what it trains on and with which functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lydian.data.forest import Normaliser
from lydian.errors import RecipeError
from lydian.objectives.advantage import group_mean, group_mean_std, leave_one_out, raw_reward
from lydian.objectives.likelihood import nll
from lydian.objectives.loss import Loss
from lydian.objectives.policy_gradient import clip, reinforce
from lydian.objectives.preference import dpo
from lydian.training.learner import Batching, KLInLoss
from lydian.training.optim import OptimiserSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """How long, how fast and how a stage trains; its algorithm's row gives the defaults that differ from these.

    optimiser           AdamW, schedule and clipping
    normaliser          how trained tokens weigh in a step: token_mean, sequence_mean, constant, pair_mean
    constant            of the `constant` normaliser; by default the sampling's max_tokens
    rounds              times that items are collected anew (rollouts) or gone through (corpora)
    epochs              passes over the items of a round
    batch_size          sequences or pairs of one optimiser step; 0 takes the whole round
    problems_per_round  problems sampled in a round; 0 takes all
    num_samples         completions a problem
    keep_per_problem    expert iteration: most correct completions kept of one problem
    kl                  penalty for leaving the reference policy (the weights at the stage's start); none by default
    batching            token budgets of forward passes; they change speed and memory, never the gradient
    checkpoint_steps    optimiser steps between two resumable checkpoints
    """

    optimiser: OptimiserSettings = field(default_factory=lambda: OptimiserSettings(learning_rate=1e-5))
    normaliser: Normaliser = "token_mean"
    constant: float | None = None
    rounds: int = 1
    epochs: int = 1
    batch_size: int = 0
    problems_per_round: int = 0
    num_samples: int = 8
    keep_per_problem: int = 4
    kl: KLInLoss | None = None
    batching: Batching = field(default_factory=Batching)
    checkpoint_steps: int = 20

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", 1),
            ("epochs", 1),
            ("batch_size", 0),
            ("problems_per_round", 0),
            ("num_samples", 1),
            ("keep_per_problem", 1),
            ("checkpoint_steps", 1),
        ):
            if getattr(self, name) < least:
                raise RecipeError(
                    where=name, given=getattr(self, name), expected=f"an integer ≥ {least}", fix="Correct the setting."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row.

    name       as recipes write it
    summary    one line
    source     paper, where there is one
    data       what it trains on: conversations and preferences are given, problems are sampled
    objective  the loss; keyword-only parameters are its settings
    advantage  credit within a group; None for those that select completions or imitate given text
    defaults   stage settings (also of `objective` and `advantage`) that differ from the general defaults
    """

    name: str
    summary: str
    source: str
    data: Literal["conversations", "preferences", "problems"]
    objective: Callable[..., Loss]
    advantage: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


_IMITATION = {"batch_size": 32, "optimiser": {"learning_rate": 2e-5, "schedule": "cosine", "warmup_share": 0.03}}
_ON_POLICY = {"rounds": 100, "problems_per_round": 32}

ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            name="pretrain",
            summary="Next-token training on plain text.",
            source="",
            data="conversations",
            objective=nll,
            defaults=_IMITATION,
        ),
        Algorithm(
            name="sft",
            summary="Supervised fine-tuning: imitates the assistant's messages.",
            source="Ouyang et al. (2022), arXiv:2203.02155",
            data="conversations",
            objective=nll,
            defaults=_IMITATION,
        ),
        Algorithm(
            name="expert_iteration",
            summary="Samples, keeps what the verifier accepts, imitates it; again from the better weights.",
            source="Anthony et al. (2017), arXiv:1705.08439",
            data="problems",
            objective=nll,
            defaults=_IMITATION | {"rounds": 2},
        ),
        Algorithm(
            name="reinforce",
            summary="REINFORCE with the group's mean reward as baseline.",
            source="Williams (1992)",
            data="problems",
            objective=reinforce,
            advantage=group_mean,
            defaults=_ON_POLICY,
        ),
        Algorithm(
            name="reinforce_no_baseline",
            summary="REINFORCE on raw rewards.",
            source="Williams (1992)",
            data="problems",
            objective=reinforce,
            advantage=raw_reward,
            defaults=_ON_POLICY,
        ),
        Algorithm(
            name="rloo",
            summary="REINFORCE with a leave-one-out baseline, weighted by whole sequences.",
            source="Ahmadian et al. (2024), arXiv:2402.14740",
            data="problems",
            objective=reinforce,
            advantage=leave_one_out,
            defaults=_ON_POLICY | {"normaliser": "constant", "constant": 1.0},
        ),
        Algorithm(
            name="grpo",
            summary="Clipped surrogate, rewards standardised within the group, mean over each sequence.",
            source="Shao et al. (2024), arXiv:2402.03300",
            data="problems",
            objective=clip,
            advantage=group_mean_std,
            defaults=_ON_POLICY | {"normaliser": "sequence_mean"},
        ),
        Algorithm(
            name="dr_grpo",
            summary="GRPO without the two biases: no division by the deviation, a constant instead of the length.",
            source="Liu et al. (2025), arXiv:2503.20783",
            data="problems",
            objective=clip,
            advantage=group_mean,
            defaults=_ON_POLICY | {"normaliser": "constant"},
        ),
        Algorithm(
            name="dapo",
            summary="GRPO with a wider upper clip and a mean over all tokens of the step.",
            source="Yu et al. (2025), arXiv:2503.14476 (without dynamic sampling and overlong shaping)",
            data="problems",
            objective=clip,
            advantage=group_mean_std,
            defaults=_ON_POLICY | {"normaliser": "token_mean", "objective": {"clip_low": 0.2, "clip_high": 0.28}},
        ),
        Algorithm(
            name="dpo",
            summary="Direct preference optimisation against the weights at the stage's start.",
            source="Rafailov et al. (2023), arXiv:2305.18290",
            data="preferences",
            objective=dpo,
            defaults={
                "normaliser": "pair_mean",
                "batch_size": 32,
                "optimiser": {"learning_rate": 1e-6, "schedule": "linear", "warmup_share": 0.1},
            },
        ),
    )
}
