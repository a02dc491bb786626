"""`Algorithm`: a row of the table, which names what it trains on and with which functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lydian.models.heads import OUTPUTS, Output
from lydian.objectives.loss import Loss
from lydian.training.learner import required_names

CreditKind = Literal["group", "imitation", "pairs", "feedback", "teacher", "critic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row.

    name       as recipes write it
    summary    one line
    source     paper, where there is one
    data       what it trains on: problems are sampled, everything else is given
    objective  the loss; keyword-only parameters are its settings. None trains nothing: the stage is only judged
    credit     how judged completions become what is trained on: group, advantages within a group; critic, advantages
               of tokens against a critic's values; imitation of the correct ones; pairs; feedback, each desirable or
               not; teacher, all of them; None where nothing is sampled
    advantage  the function of a credit that has one
    mixes      kind of the given data that a round has beside its samples, if any
    defaults   stage settings (also of `objective` and `advantage`) that differ from the general defaults
    """

    name: str
    summary: str
    source: str
    data: Literal["conversations", "preferences", "problems", "stepwise", "labelled"]
    objective: Callable[..., Loss] | None
    credit: CreditKind | None = None
    advantage: Callable[..., Any] | None = None
    mixes: Literal["conversations"] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """What the objective asks for, by name."""
        return () if self.objective is None else required_names(self.objective)

    @property
    def head(self) -> Output | None:
        """The output that the objective asks for of a head beside the policy."""
        return next((name for name in OUTPUTS if name in self.needs), None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of data sets it takes: feedback too, where the objective looks at replies one by one."""
        is_unpaired = self.data == "preferences" and "is_desirable" in self.needs and "is_chosen" not in self.needs
        return (self.data, "feedback") if is_unpaired else (self.data,)

    @property
    def needs_teacher(self) -> bool:
        """Whether the objective compares with a teacher."""
        return bool({"teacher_logits", "teacher_logprobs"} & set(self.needs))

    @property
    def is_policy(self) -> bool:
        """Whether it trains a policy, rather than something that judges or nothing at all."""
        return self.objective is not None and self.head not in ("score", "class_logits")
