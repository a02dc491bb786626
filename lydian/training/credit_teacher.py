"""What a student's own samples teach it when a teacher, not a verdict, says how good each token is."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lydian.data.forest import Item
from lydian.data.trajectory import Finish
from lydian.data.verdict import Group
from lydian.training.credit import require_full_support, sequence_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """All completions, whatever their verdict: the teacher judges each token.

    is_estimated     the loss is an estimate from the sampled tokens (a reverse KL of logprobs): they keep the
                     temperature and logprobs that they were drawn with. Otherwise it compares whole distributions, and
                     samples are contexts like given text
    train_truncated  train completions that hit the limit on new tokens
    """

    is_estimated: bool
    train_truncated: bool = True
    needs: tuple[str, ...] = ()

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """One sequence for each completion.

        Raises RecipeError if the loss is an estimate and the samples come from a truncated distribution (greedy, top-p,
        top-k, min-p): it would then be the divergence of another policy.
        """
        trajectories = [member.trajectory for group in groups for member in group.members]
        if self.is_estimated:
            for trajectory in trajectories:
                require_full_support(trajectory.turns[-1].completion.sampling)
        return [
            sequence_of(trajectory, is_imitated=not self.is_estimated)
            for trajectory in trajectories
            if self.train_truncated or trajectory.finish is not Finish.LENGTH
        ]

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """None of its own."""
        return {}

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Nothing to assign: the teacher is asked while the step is computed."""
        return list(items)
