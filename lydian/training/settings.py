"""How long, how fast and how a stage trains."""

from __future__ import annotations

from dataclasses import dataclass, field

from lydian.data.forest import Normaliser
from lydian.errors import RecipeError
from lydian.training.learner import Anchor, Batching
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import KL, Correction, EntropyBonus


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
    most_draws          dynamic sampling: with more than one, groups that are all right or all wrong are replaced by
                        further problems, at most this many times the problems of a round
    train_truncated     train completions that hit the limit on new tokens; they count in baselines either way
    overlong_share      last share of the limit on new tokens over which a penalty for length grows from 0 to 1
    self_test           ask the verifier, before the stage starts, whether it accepts the problems' own answers and
                        refuses others', nothing, and copies of the prompt; off for a reward that does not read answers
    kl                  penalty for leaving the reference policy (the weights at the stage's start), in the loss or in
                        the reward; none by default
    entropy             bonus for entropy, fixed or steered to a target; none by default
    correction          weights for the gap between sampler and trainer; several multiply. By default the gap is
                        measured only
    anchor              the clip's proximal policy: `recomputed` by the trainer at the round's start, or `behaviour`
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
    most_draws: int = 1
    train_truncated: bool = True
    overlong_share: float = 0.0
    self_test: bool = True
    kl: KL | None = None
    entropy: EntropyBonus | None = None
    correction: tuple[Correction, ...] = ()
    anchor: Anchor = "recomputed"
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
            ("most_draws", 1),
            ("checkpoint_steps", 1),
        ):
            if getattr(self, name) < least:
                raise RecipeError(
                    where=name, given=getattr(self, name), expected=f"an integer ≥ {least}", fix="Correct the setting."
                )
        if not 0 <= self.overlong_share <= 1:
            raise RecipeError(
                where="overlong_share", given=self.overlong_share, expected="a share in [0, 1]", fix="Correct it."
            )
