"""Preferences from the policy's own samples: judged groups become pairs, or replies with a thumb up or down.

    group of judged completions ─▶ `JudgedPairs`     pairs of a chosen and a rejected one, for DPO and its kin
                                ─▶ `JudgedFeedback`  each completion with whether it is wanted, for KTO and BCO

Whoever judges (rule, model that judges, reward model), what is trained on is the sampled ids themselves, at temperature
1: the policy that a preference objective speaks of is the softmax of the logits, however the samples were drawn. So the
same replies, written to a file and read back, train the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from lydian.data.forest import Item
from lydian.data.pair_rules import Candidate, Choice, PairRules, choose_pairs, pair_metrics
from lydian.data.sequence import Pair, Sequence
from lydian.data.trajectory import Finish
from lydian.data.verdict import Group, Scored
from lydian.training.credit import sequence_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPairs:
    """Online DPO: each group's pairs by stated rules; a completion whose verifier failed never stands in one.

    rules            which completions make a pair, and how many a problem
    train_truncated  let completions that hit the limit on new tokens stand in pairs

    Source: Guo et al. (2024), arXiv:2402.04792; best against worst e.g. in Pang et al. (2024), arXiv:2404.19733.
    """

    rules: PairRules = field(default_factory=PairRules)
    train_truncated: bool = True
    needs: tuple[str, ...] = ()

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """The pairs, numbered through the round by the fact `pair`."""
        chosen = [(group.members[i], group.members[j]) for group in groups for i, j in self._choice(group).pairs]
        return [
            Pair(chosen=_judged(better, 1.0, pair=number), rejected=_judged(worse, 0.0, pair=number))
            for number, (better, worse) in enumerate(chosen)
        ]

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Nothing to assign: a pair says all."""
        return list(items)

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """How many pairs, which groups gave none and why, and whether the chosen are longer: see `pair_metrics`."""
        return pair_metrics([self._choice(group) for group in groups])

    def _choice(self, group: Group) -> Choice:
        return choose_pairs([_candidate(member, self.train_truncated) for member in group.members], self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFeedback:
    """Online KTO: every completion that has a score, desirable if it is correct.

    train_truncated  train completions that hit the limit on new tokens too

    Copies stay: what the policy says often is said to it often.
    Source: Ethayarajh et al. (2024), arXiv:2402.01306.
    """

    train_truncated: bool = True
    needs: tuple[str, ...] = ()

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """The completions, with the fact `is_desirable`."""
        return [_judged(member, float(member.verdict.is_correct)) for member in self._members(groups)]

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Nothing to assign: the verdict says all."""
        return list(items)

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """desirable  share of the trained completions that are desirable; left out where there are none"""
        members = self._members(groups)
        return {"desirable": sum(m.verdict.is_correct for m in members) / len(members)} if members else {}

    def _members(self, groups: Seq[Group]) -> list[Scored]:
        return [
            member
            for group in groups
            for member in group.members
            if member.verdict.score is not None and (self.train_truncated or not _is_truncated(member))
        ]


def _candidate(member: Scored, train_truncated: bool) -> Candidate:
    """One without a score stays out, and so does what is not to be trained."""
    is_out = _is_truncated(member) and not train_truncated
    return Candidate(
        score=None if is_out else member.verdict.score,
        length=member.trajectory.num_sampled_tokens,
        is_correct=member.verdict.is_correct,
        content=member.trajectory.tokens,
    )


def _judged(member: Scored, is_desirable: float, pair: int | None = None) -> Sequence:
    facts = {"is_desirable": is_desirable}
    if pair is not None:
        facts |= {"pair": float(pair), "is_chosen": is_desirable}
    return replace(sequence_of(member.trajectory, is_imitated=True), facts=facts)


def _is_truncated(member: Scored) -> bool:
    return member.trajectory.finish is Finish.LENGTH
