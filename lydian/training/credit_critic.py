"""Credit with a critic: rewards stand on tokens, and each token is compared with the value that was expected there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lydian.data.forest import Item, sequences_of
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish
from lydian.data.verdict import Group
from lydian.objectives.advantage import soft_overlong, whiten
from lydian.objectives.returns import token_rewards
from lydian.objectives.segments import segment_sum
from lydian.training.credit import require_full_support, sequence_of
from lydian.training.learner import required_names
from lydian.training.step_facts import with_stream
from lydian.training.terms import KLInReward


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBaseline:
    """Rewards of tokens, turned into an advantage and a return for each token against a critic's values.

    advantage        a function such as `lydian.objectives.returns.gae`; its positional parameters name what it needs
    kl               penalty in the reward of each token, or None
    is_whitened      standardise the advantages over all tokens of the round; returns stay as they are
    bootstraps       a truncated completion goes on with the value after its last token; otherwise it ends there
    max_tokens       limit on new tokens, for the penalty on overlong completions
    overlong_buffer  tokens below the limit over which the penalty grows from 0 to 1; 0 for none
    train_truncated  train completions that hit the limit too

    It reads what `ActorCritic` measures at a round's start: the stream old_value and the fact bootstrap_value. Members
    whose verifier failed have no score: they are left out.
    """

    advantage: Callable[..., Tensor]
    kl: KLInReward | None = None
    is_whitened: bool = True
    bootstraps: bool = True
    max_tokens: int = 0
    overlong_buffer: int = 0
    train_truncated: bool = True
    needs: tuple[str, ...] = ()

    def items(self, groups: Seq[Group], greedy_rewards: Mapping[str, float]) -> list[Item]:
        """One sequence for each member that has a score, with the facts reward and is_truncated.

        Raises RecipeError if samples were drawn from a truncated distribution (greedy, top-p, top-k, min-p).
        """
        sequences: list[Item] = []
        for member in itertools.chain.from_iterable(group.members for group in groups):
            if member.verdict.score is None:
                continue
            completion = member.trajectory.turns[-1].completion
            require_full_support(completion.sampling)
            facts = {"reward": member.verdict.score, "is_truncated": float(completion.finish is Finish.LENGTH)}
            if self.train_truncated or not facts["is_truncated"]:
                sequences.append(replace(sequence_of(member.trajectory, is_imitated=False), facts=facts))
        return sequences

    def assign(self, items: Seq[Item]) -> list[Item]:
        """The sequences with the streams advantage and returns, and the fact total_reward: reward less the KL."""
        sequences = sequences_of(items)
        if not sequences:
            return []
        known = self._known(sequences)
        advantage = self.advantage(*(known[name] for name in required_names(self.advantage)))
        streams = {
            "returns": advantage + known["value"],
            "advantage": whiten(advantage) if self.is_whitened else advantage,
        }
        totals = segment_sum(known["reward"], known["sequence"], len(sequences)).tolist()
        assigned: list[Item] = [
            replace(sequence, facts={**sequence.facts, "total_reward": total})
            for sequence, total in zip(sequences, totals, strict=True)
        ]
        sizes = [sequence.num_trained for sequence in sequences]
        for name, values in streams.items():
            parts = (part.tolist() for part in values.split(sizes))
            assigned = with_stream(assigned, name, dict(zip((s.id for s in sequences), parts, strict=True)))
        return assigned

    def metrics(self, groups: Seq[Group]) -> dict[str, float]:
        """None of its own."""
        return {}

    def _known(self, sequences: Seq[Sequence]) -> dict[str, Tensor]:
        """What advantages may ask for: one number a token, or a sequence."""
        score, is_truncated, after = (
            torch.tensor([s.facts[name] for s in sequences], dtype=torch.float64)
            for name in ("reward", "is_truncated", "bootstrap_value")
        )
        sizes = torch.tensor([s.num_trained for s in sequences])
        owner = torch.repeat_interleave(torch.arange(len(sequences)), sizes)
        if self.overlong_buffer:
            score = score + soft_overlong(sizes, limit=self.max_tokens, buffer=self.overlong_buffer)
        value = at_trained(sequences, "old_value")
        kl = torch.zeros_like(value) if self.kl is None else reference_kl(sequences)
        return {
            "reward": token_rewards(score, kl, owner, kl_coef=self.kl.coef if self.kl else 0.0),
            "value": value,
            "sequence": owner,
            "is_truncated": is_truncated if self.bootstraps else torch.zeros_like(is_truncated),
            "bootstrap_value": after,
        }


def at_trained(sequences: Seq[Sequence], name: str) -> Tensor:
    """A stream at the trained tokens of all sequences, one after another, [n] in float64."""
    values = (itertools.compress(sequence.streams[name], sequence.trained) for sequence in sequences)
    return torch.tensor(list(itertools.chain.from_iterable(values)), dtype=torch.float64)


def reference_kl(sequences: Seq[Sequence]) -> Tensor:
    """k1 of KL(proximal ‖ reference) at each trained token, log π_proximal − log π_reference, [n] in nats."""
    return at_trained(sequences, "proximal_logprobs") - at_trained(sequences, "reference_logprobs")
