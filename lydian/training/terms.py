"""What may stand beside an objective: a KL penalty, an entropy bonus, given text, the correction of the sampler's gap,
a critic."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from lydian.errors import RecipeError
from lydian.objectives.correction import importance_weights
from lydian.objectives.entropy import next_entropy_coef
from lydian.training.optim import OptimiserSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KLInLoss:
    """A penalty to the loss, coef · k(π, π_reference) per token.

    place      "loss"
    coef       weight of the penalty
    estimator  k2: its gradient is that of KL(π ‖ π_reference) on tokens of π; k3: GRPO's choice, never negative, but as
               a loss its gradient is the other KL's; straight_through: k3's value with k2's gradient
    """

    place: Literal["loss"] = "loss"
    coef: float
    estimator: Literal["k2", "k3", "straight_through"] = "k3"


@dataclass(frozen=True, slots=True, kw_only=True)
class KLInReward:
    """A penalty to the reward before advantages are taken, R − coef · Σ_t (log π_proximal − log π_reference).

    place  "reward"
    coef   weight of the sequence's KL estimate, k1 summed over its tokens: unbiased in value and in gradient
    """

    place: Literal["reward"]
    coef: float


KL = KLInLoss | KLInReward


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBonus:
    """A bonus of coef · H(π) per token; with a target the coefficient follows the measured entropy.

    coef    weight of the bonus, at the start when there is a target
    target  entropy in nats a token to hold: below it the coefficient rises by `delta` a step, above it falls
    delta   change of the coefficient a step
    min_coef, max_coef  bounds of the coefficient
    """

    coef: float
    target: float | None = None
    delta: float = 1e-4
    min_coef: float = 0.0
    max_coef: float = 0.01

    def next_coef(self, coef: float, measured: float) -> float:
        """The coefficient of the next step, by the entropy that this one measured."""
        if self.target is None:
            return coef
        return next_entropy_coef(
            coef, measured, target=self.target, delta=self.delta, min_coef=self.min_coef, max_coef=self.max_coef
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingLoss:
    """Likelihood of given text beside the objective (PTX), loss + coef · NLL(text): against forgetting.

    coef        weight of the mean NLL of a token of the text
    data        name of the data set of conversations
    batch_size  conversations a step, gone through in seeded orders, one after another

    Source: Ouyang et al. (2022), arXiv:2203.02155, eq. 2.
    """

    coef: float
    data: str
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.coef <= 0 or self.batch_size < 1:
            raise RecipeError(
                where="PretrainingLoss.coef" if self.coef <= 0 else "PretrainingLoss.batch_size",
                given=self.coef if self.coef <= 0 else self.batch_size,
                expected="coef > 0 and batch_size ≥ 1",
                fix="Correct it, or leave the pretraining loss out.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """The value function of actor–critic methods, and what is done to rewards and advantages around it.

    network        own: a model of its own with a value head; shared: a head on the policy's last hidden states
    start          model that an own network starts from, such as a reward model's folder (its head is taken over) or
                   that of a stage with a critic (which goes on as that stage left it); by default the policy's weights
                   at the stage's start. A new head starts at 0
    loss           squared, or clipped: squared, without a gain from moving farther than `clip` within a round
    clip           bound of the clipped loss, in units of reward
    coef           weight of the value loss in the loss of a shared network
    optimiser      of an own network; a shared one has the stage's
    warmup_rounds  rounds at the start in which only the critic trains (of a shared network, only the head)
    is_whitened    standardise the advantages over all tokens of a round
    bootstraps     count V after the last token of a truncated completion as if it had gone on; otherwise it ends there
    reward_scale   none; round: rewards standardised over their round; running: over all rounds so far
    reward_clip    rewards, scaled or not, are kept within ± this; 0 for no bound
    """

    network: Literal["own", "shared"] = "own"
    start: str = ""
    loss: Literal["squared", "clipped"] = "clipped"
    clip: float = 0.2
    coef: float = 0.1
    optimiser: OptimiserSettings = field(default_factory=lambda: OptimiserSettings(learning_rate=1e-5))
    warmup_rounds: int = 0
    is_whitened: bool = True
    bootstraps: bool = True
    reward_scale: Literal["none", "round", "running"] = "none"
    reward_clip: float = 0.0

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("start", not (self.start and self.network == "shared"), "none for a shared network"),
            ("clip", self.clip > 0, "> 0"),
            ("coef", self.coef > 0, "> 0"),
            ("warmup_rounds", self.warmup_rounds >= 0, "≥ 0"),
            ("reward_clip", self.reward_clip >= 0, "≥ 0"),
        ):
            if not holds:
                raise RecipeError(
                    where=f"CriticSettings.{name}", given=getattr(self, name), expected=expected, fix="Correct it."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Weights π_proximal / π_behaviour on the loss, for tokens that another policy or another engine sampled.

    level       token; sequence: the product of a sequence's ratios; geometric: their geometric mean
    mode        truncate: min(w, high); band: w inside [low, high], else 0; reject: 1 inside [low, high], else 0
    low, high   bounds of the weight, a ratio; truncate has no lower one
    normalise   divide by the mean weight of the step, so that corrections do not change the step's size
    """

    level: Literal["token", "sequence", "geometric"] = "token"
    mode: Literal["truncate", "band", "reject"] = "truncate"
    low: float | None = None
    high: float = 2.0
    normalise: bool = False

    def __post_init__(self) -> None:
        is_truncated = self.mode == "truncate" and self.low is not None
        if is_truncated or not 0 <= (self.low or 0.0) < self.high:
            raise RecipeError(
                where="Correction.low",
                given=f"mode {self.mode}, bounds [{self.low}, {self.high}]",
                expected="no lower bound with truncate; 0 ≤ low < high with band and reject",
                fix="Correct the bounds; they are ratios, 1 meaning that the policies agree.",
            )


def correction_weights(
    corrections: Seq[Correction], behaviour: Tensor, proximal: Tensor, sequence: Tensor, *, only_rejects: bool
) -> Tensor:
    """The product of the corrections' weights at each site, [n], before any normalisation.

    only_rejects  leave out the modes that put the ratio into the weight: where the behaviour policy is itself the
                  clip's anchor the objective has the ratio already, and it must not count twice
    """
    weights = behaviour.new_ones(behaviour.shape)
    for correction in corrections:
        if only_rejects and correction.mode != "reject":
            continue
        weights = weights * importance_weights(
            behaviour,
            proximal,
            sequence,
            level=correction.level,
            mode=correction.mode,
            low=correction.low,
            high=correction.high,
        )
    return weights
