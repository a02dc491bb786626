"""A teacher: a frozen policy whose distributions over the shared vocabulary a student is drawn to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lydian.data.forest import Forest, plant
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models.load import LoadedModel
from lydian.models.policy import Policy

PROBE = "Tom's 12 apples,\n  and 3.5 more: 12+3.5=15.5?\tnaïve – 你好 🙂 HTTPServer x_1 != y"
"""Tokenizers with one vocabulary may still cut texts differently; here most of those that differ do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A frozen policy, and how much of its vocabulary it shares with the student.

    policy      the teacher's; it may have another architecture and another layout than the student's
    num_tokens  v: ids below it mean the same tokens to both; student and teacher are compared on these
    notes       what was cut off on either side, one line each
    """

    policy: Policy
    num_tokens: int
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(teacher: LoadedModel, student: LoadedModel) -> Teacher:
        """The checkpoint as the student's teacher: frozen, on the student's device, in its own precision.

        Raises ModelError if the two tokenizers differ; see `shared_vocabulary`.
        """
        num_shared = shared_vocabulary(student.tokenizer, teacher.tokenizer, name=teacher.source)
        model = teacher.model.requires_grad_(False).eval().to(student.model.device)
        is_bfloat16 = model.dtype == torch.bfloat16
        policy = Policy(model, compute_dtype=torch.bfloat16 if is_bfloat16 else torch.float32)
        rows = {
            "student": student.model.get_output_embeddings().weight.shape[0],
            "teacher": policy.output.weight.shape[0],
        }
        num_tokens = min(num_shared, *rows.values())
        notes = [
            f"the {side} has {num} output rows; ids from {num_tokens} on are left out of the comparison"
            for side, num in rows.items()
            if num > num_tokens
        ]
        return Teacher(policy=policy, num_tokens=num_tokens, notes=tuple(notes))

    @torch.no_grad()
    def hidden(self, forest: Forest, sequences: Mapping[str, Sequence]) -> Float[Tensor, "n d"]:
        """The states that predict the forest's sites, in their order.

        sequences  those of the forest, by id: where the teacher cannot read the student's layout, it plants its own

        Raises ModelError for a token that the teacher does not know.
        """
        self._require_known(forest)
        layout = self.policy.layout
        if forest.layout in ("single", layout) or layout == "shared":
            return self.policy.states(forest)[forest.sites.source]
        rows: dict[str, Tensor] = {}
        ones = dict.fromkeys(forest.sequence_ids, 1.0)
        own = [sequences[name] for name in forest.sequence_ids]
        for planted in plant(own, ones, layout=layout, batch_tokens=forest.num_tokens):
            moved = planted.to(self.policy.device)
            states = self.policy.states(moved)[moved.sites.source]
            rows |= {name: states[moved.sites.sequence == k] for k, name in enumerate(moved.sequence_ids)}
        return torch.cat([rows[name] for name in forest.sequence_ids])

    def _require_known(self, forest: Forest) -> None:
        largest = int(forest.tokens.max())
        if largest >= self.num_tokens:
            raise ModelError(
                where="teacher",
                given=f"a sequence with token {largest}",
                expected=f"ids below {self.num_tokens}, which student and teacher share",
                fix="Leave out texts with the student's own added tokens, or add them to the teacher too.",
            )


def shared_vocabulary(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, *, name: str) -> int:
    """How many ids, from 0 on, both tokenizers have; they must mean the same tokens, and texts must be cut alike.

    name  of the teacher, for the error

    One may have tokens beyond the other's last. Raises ModelError that names the first token that differs.
    """
    ours, theirs = ({i: token for token, i in t.get_vocab().items()} for t in (student, teacher))
    num = min(max(ours), max(theirs)) + 1
    for i in range(num):
        if ours.get(i) != theirs.get(i):
            raise _other_tokenizer(name, f"id {i} is {theirs.get(i)!r}, and {ours.get(i)!r} to the student")
    cut = [t.convert_ids_to_tokens(t(PROBE, add_special_tokens=False)["input_ids"]) for t in (student, teacher)]
    for mine, its in zip(*cut, strict=False):
        if mine != its:
            raise _other_tokenizer(name, f"the same vocabulary, but it reads {its!r} where the student reads {mine!r}")
    return num


def _other_tokenizer(name: str, given: str) -> ModelError:
    return ModelError(
        where=f"teacher {name!r}",
        given=f"another tokenizer than the student's: {given}",
        expected="the student's tokenizer, so that both speak of the same tokens",
        fix="Distil by texts instead: `lydian respond` writes the teacher's replies, and `sft` trains on them.",
    )
