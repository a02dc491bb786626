"""How long, how fast and how a stage trains."""

from __future__ import annotations

from dataclasses import dataclass, field

from lydian.data.forest import Normaliser
from lydian.data.pair_rules import PairRules
from lydian.errors import RecipeError
from lydian.training.learner import Anchor, Batching, Reference, ReferenceLogprobs
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import KL, Correction, CriticSettings, EntropyBonus, KLInReward, PretrainingLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """How long, how fast and how a stage trains; its algorithm's row gives the defaults that differ from these.

    optimiser           AdamW, schedule and clipping
    normaliser          how trained tokens weigh in a step: token_mean, sequence_mean, constant, pair_mean
    constant            of the `constant` normaliser; by default the sampling's max_tokens
    rounds              times that items are collected anew (rollouts) or gone through (corpora)
    epochs              passes over the items of a round
    target_kl           a round's further epochs are dropped after one whose mean KL to the round's first policy (k3, in
                        nats a token) is above this; none by default
    batch_size          sequences or pairs of one optimiser step; 0 takes the whole round
    problems_per_round  problems sampled in a round; 0 takes all
    num_samples         completions a problem
    keep_per_problem    expert iteration: most correct completions kept of one problem; 0 keeps all
    pairs               which completions of a problem become pairs, where an algorithm trains on pairs of its own
    hint                STaR: text set behind the question of problems that no sample solved, with {answer} in it, for
                        the gold answer. Correct completions are trained on without it; empty for no hint
    hint_words          beginnings of words that a completion with a hint must not have: it would speak of the hint
    restart             each round trains again from the stage's first weights, with a new optimiser and schedule
    on_policy_share     gkd: share of a round's sequences that the policy samples, in (0, 1]; the rest are given texts
    most_draws          dynamic sampling: with more than one, groups that are all right or all wrong are replaced by
                        further problems, at most this many times the problems of a round
    train_truncated     train completions that hit the limit on new tokens; they count in baselines either way
    overlong_share      last share of the limit on new tokens over which a penalty for length grows from 0 to 1
    self_test           ask the verifier, before the stage starts, whether it accepts the problems' own answers and
                        refuses others', nothing, and copies of the prompt; off for a reward that does not read answers
    reference           the reference policy: the weights at the stage's `start`, or at each `round`'s start
    reference_logprobs  of what is trained on: `live`, measured at each step; `cached`, once a round, and once for all
                        of a fixed corpus
    kl                  penalty for leaving the reference policy, in the loss or in the reward; none by default
    entropy             bonus for entropy, fixed or steered to a target; none by default
    ptx                 loss of given text beside the objective; none by default
    critic              value function of an algorithm that has one
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
    target_kl: float | None = None
    batch_size: int = 0
    problems_per_round: int = 0
    num_samples: int = 8
    keep_per_problem: int = 4
    pairs: PairRules = field(default_factory=PairRules)
    hint: str = ""
    hint_words: tuple[str, ...] = ("hint",)
    restart: bool = False
    on_policy_share: float = 0.5
    most_draws: int = 1
    train_truncated: bool = True
    overlong_share: float = 0.0
    self_test: bool = True
    reference: Reference = "start"
    reference_logprobs: ReferenceLogprobs = "live"
    kl: KL | None = None
    entropy: EntropyBonus | None = None
    ptx: PretrainingLoss | None = None
    critic: CriticSettings | None = None
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
            ("keep_per_problem", 0),
            ("most_draws", 1),
            ("checkpoint_steps", 1),
        ):
            if getattr(self, name) < least:
                raise RecipeError(
                    where=name, given=getattr(self, name), expected=f"an integer ≥ {least}", fix="Correct the setting."
                )
        if self.target_kl is not None and self.target_kl <= 0:
            raise RecipeError(where="target_kl", given=self.target_kl, expected="> 0", fix="Leave it out for no limit.")
        if not 0 < self.on_policy_share <= 1:
            raise RecipeError(
                where="on_policy_share",
                given=self.on_policy_share,
                expected="a share in (0, 1]",
                fix="For given texts alone use `distil` or `distil_jsd`.",
            )
        if not 0 <= self.overlong_share <= 1:
            raise RecipeError(
                where="overlong_share", given=self.overlong_share, expected="a share in [0, 1]", fix="Correct it."
            )
        if self.hint and self.hint.count("{answer}") != 1:
            raise RecipeError(where="hint", given=repr(self.hint), expected="{answer} in it, once", fix="Put it in.")
        if self.reference == "round" and isinstance(self.kl, KLInReward):
            raise RecipeError(
                where="reference",
                given="'round' with a KL in the reward",
                expected="a reference that is not the policy which samples the round: their KL is 0",
                fix='Set reference = "start", or kl.place = "loss".',
            )
