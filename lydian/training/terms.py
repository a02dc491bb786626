"""What may stand beside an objective: a KL penalty, an entropy bonus, the correction of the sampler's gap."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lydian.errors import RecipeError
from lydian.objectives.correction import importance_weights
from lydian.objectives.entropy import next_entropy_coef


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
