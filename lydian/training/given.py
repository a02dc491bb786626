"""A round of samples and given text together: generalised knowledge distillation's mixture."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from lydian.data.forest import Item
from lydian.data.sequence import Sequence
from lydian.errors import RecipeError
from lydian.models.weights import Weights
from lydian.rollout.engine import Progress
from lydian.training.collect import Collected, Rollouts, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class WithGiven:
    """Rollouts, and so many given sequences beside them that the samples are the share λ of a round.

    rollouts         what the policy samples: n completions a round
    given            texts, drawn n (1 − λ) / λ a round, rounded, without replacement until all have had their turn
    on_policy_share  λ in (0, 1]; at 1 no text is drawn

    Source: Agarwal et al. (2023), arXiv:2306.13649, algorithm 1; there λ is the chance of a step to be on-policy.
    """

    rollouts: Rollouts
    given: Seq[Sequence]
    on_policy_share: float

    def __post_init__(self) -> None:
        if not 0 < self.on_policy_share <= 1 or (self.num_given and not self.given):
            raise RecipeError(
                where="on_policy_share",
                given=f"{self.on_policy_share} with {len(self.given)} given texts",
                expected="a share in (0, 1], and texts for the rest where it is below 1",
                fix="Name the stage's `given_data`; for given text alone use `distil` or `distil_jsd`.",
            )

    @property
    def num_given(self) -> int:
        """Texts of one round."""
        num_problems = self.rollouts.problems_per_round or len(self.rollouts.problems)
        return round(num_problems * self.rollouts.num_samples * (1 - self.on_policy_share) / self.on_policy_share)

    def load(self, weights: Weights) -> None:
        """Passes new weights to the rollouts."""
        self.rollouts.load(weights)

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """The round's samples, then its texts; metric on_policy_share, the share that was realised."""
        collected = self.rollouts.collect(round, progress)
        start = round * self.num_given
        places = walk(len(self.given), start, self.num_given, self.rollouts.seed)
        texts = [  # the place makes ids unique where a round needs a text twice
            replace(self.given[index], id=f"given {place}: {self.given[index].id}")
            for place, index in enumerate(places, start=start)
        ]
        share = len(collected.items) / max(1, len(collected.items) + len(texts))
        metrics = collected.metrics | {"on_policy_share": share}
        return replace(collected, items=[*collected.items, *texts], metrics=metrics)

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Neither samples nor texts have advantages here."""
        return list(items)
