"""`RewardModel`: a saved model with its head; and the numbers a head gives to token sequences, a forest at a time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lydian.data.forest import plant
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models.heads import Head
from lydian.models.load import load_model
from lydian.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """A model whose head judges text: output(h_t) = W h_t + b of the last hidden state h_t at a site's token.

    policy     the model with its head, whose output is score or class_logits; frozen
    tokenizer  the model's
    digest     of all weight files, the head's among them

    Transformers alone gives the same numbers: `AutoModel.from_pretrained(folder)(ids).last_hidden_state[0, t] · W + b`,
    with W and b from `head.safetensors`.
    """

    policy: Policy
    tokenizer: PreTrainedTokenizerBase
    digest: str

    @staticmethod
    def load(folder: str | Path) -> RewardModel:
        """The reward model saved in a folder: a checkpoint or an adapter, beside it `head.safetensors`.

        Raises ModelError if there is none, or if the head is a critic's.
        """
        head = Head.load(Path(folder))
        if head.output == "value":
            raise ModelError(
                where=str(folder),
                given="a critic's head, which reads what is to come",
                expected="a head that judges: of a reward model, a process reward model or a classifier",
                fix="Name the folder of a stage that trains one of these.",
            )
        loaded = load_model(folder)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        policy = Policy(loaded.model.to(device).requires_grad_(False), head=head.to(device).requires_grad_(False))
        return RewardModel(policy=policy, tokenizer=loaded.tokenizer, digest=loaded.digest)

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the head's numbers, see `Head`."""
        return _head_of(self.policy).facts

    @property
    def max_tokens(self) -> int:
        """The longest text that the model has positions for."""
        return getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None) or 2**31


@torch.no_grad()
def head_outputs(
    policy: Policy, sequences: Seq[Sequence], *, row_tokens: int = 512, batch_tokens: int = 8192
) -> list[Tensor]:
    """For each sequence the head's output at its sites, in their order: [n] scores or [n, c] class logits.

    policy        a model with a head
    sequences     ids unique; what is `trained` is where the head is read
    row_tokens, batch_tokens  budgets of `plant`; they change speed and memory, not the numbers

    Raises ModelError for a policy without a head.
    """
    head = _head_of(policy)
    found: dict[str, Tensor] = {}
    weights = dict.fromkeys((sequence.id for sequence in sequences), 1.0)
    for planted in plant(sequences, weights, layout=policy.layout, row_tokens=row_tokens, batch_tokens=batch_tokens):
        forest = planted.to(policy.device)
        outputs = head.at_sites(policy.states(forest), forest.sites).cpu()
        sizes = torch.bincount(planted.sites.sequence, minlength=len(planted.sequence_ids)).tolist()
        found |= zip(planted.sequence_ids, outputs.split(sizes), strict=True)
    return [found[sequence.id] for sequence in sequences]


def last_scores(policy: Policy, sequences: Seq[Sequence]) -> list[float]:
    """The score of each sequence: the head's output at its last site. Raises ModelError for a policy without a head."""
    return [output[-1].item() for output in head_outputs(policy, sequences)]


def _head_of(policy: Policy) -> Head:
    if policy.head is None:
        raise ModelError(
            where="head_outputs",
            given="a model without a head",
            expected="one with the head of a reward model or a classifier",
            fix="Load it by `RewardModel.load`, or give `Policy` its head.",
        )
    return policy.head
