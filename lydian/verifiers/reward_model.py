"""`reward_model`: a trained model says how good a completion is. It has read no gold answer: its score is no accuracy.

The model is the folder of a stage that trained one (reward_model, process_reward_model), or any object that scores,
handed over by code. Completions are scored in batches, each with the template that the model was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import LydianError, ModelError, RecipeError
from lydian.verifiers.verifier import LABEL_FREE, Example, fingerprint, judged, register

if TYPE_CHECKING:
    from lydian.data.sequence import Sequence as TokenSequence
    from lydian.models.reward_model import RewardModel as LoadedModel
    from lydian.text.encoded import Template

Scale = Literal["raw", "sigmoid", "normalised"]
Aggregation = Literal["min", "last", "product", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply to score; `is_ended` unless it was cut off."""

    messages: tuple[Message, ...]
    text: str
    is_ended: bool


class Scorer(Protocol):
    """What scores replies.

    digest  equal digests score alike
    facts   mean and deviation of its scores, if `normalised` is asked for; `steps` if it scores steps
    """

    digest: str
    facts: dict[str, Any]

    def scores(self, replies: Sequence[Reply]) -> list[list[float] | str]:
        """The scores of each reply's steps (none of an empty reply's), or its one score; or why it has none."""
        ...


class RewardModel:
    """How good a reply is, as a model says that was trained on preferences or on labelled steps.

    A reward model reads the whole reply and scores it at its last token, r. A process reward model gives each step the
    probability p_k = σ(r_k) to be right; the reply's score is their aggregation. Replies are split into steps by the
    rule that the training data followed.

    model        folder of the model, with head.safetensors
    scale        of a reward model's score: raw, r; sigmoid, σ(r); normalised, (r − mean) / deviation as measured where
                 it was trained
    aggregation  of a process reward model's steps: min, last, product or mean
    threshold    from this score on, in units of the scale, the outcome is CORRECT; none: no reply is, and accuracy says
                 nothing
    scorer       code only: an object that scores, in place of a folder

    Outcomes: UNPARSED, an empty reply; TRUNCATED, that or a reply below the threshold which was cut off; FAILED, one
    that the model cannot read (longer than it has positions for, with a stop token inside); else CORRECT or WRONG. All
    but FAILED have the model's score; a process reward model gives 0 to the empty reply. `parts` has `label_free`, 1.

    Trap: a policy trained against it learns what the model takes for good. Watch a verifier that reads answers beside
    it (`lydian.evaluation.over_optimisation`).

    Source: Ouyang et al. (2022), arXiv:2203.02155; Lightman et al. (2023), arXiv:2305.20050.
    """

    name = "reward_model"

    def __init__(
        self,
        *,
        model: str = "",
        scale: Scale = "raw",
        aggregation: Aggregation = "min",
        threshold: float | None = None,
        scorer: object | None = None,
    ) -> None:
        is_known = scale in get_args(Scale) and aggregation in get_args(Aggregation)
        if bool(model) == (scorer is not None) or not is_known:
            raise RecipeError(
                where="verifier 'reward_model'",
                given=f"model={model!r}, scale={scale!r}, aggregation={aggregation!r}",
                expected="the folder of a reward model; raw, sigmoid or normalised; min, last, product or mean",
                fix="Correct the setting.",
            )
        self.scorer: Scorer = SavedScorer.load(model) if scorer is None else scorer  # type: ignore[assignment]
        self.scale = scale
        self.aggregation = aggregation
        self.threshold = threshold
        if scale == "normalised" and not self.scorer.facts.get("deviation"):
            raise RecipeError(
                where="verifier 'reward_model', scale",
                given=f"normalised, for a model without a measured scale: {model}",
                expected="raw or sigmoid",
                fix="Choose one of these; a process reward model's scores are probabilities already.",
            )
        settings = {"scale": scale, "aggregation": aggregation, "threshold": threshold, "weights": self.scorer.digest}
        self.fingerprint = LABEL_FREE + fingerprint(self.name, settings)

    def check(self, problem: Problem) -> None:
        """Any problem will do: no gold answer is read."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return self.verify_many([(problem, text, finish)])[0]

    def verify_many(self, items: Sequence[tuple[Problem, str, Finish]]) -> list[Verdict]:
        """All completions, scored in batches."""
        replies = [
            Reply(
                messages=problem.messages,
                text=text.encode("utf-8", "replace").decode(),  # a lone surrogate cannot be tokenised
                is_ended=finish is Finish.STOP,
            )
            for problem, text, finish in items
        ]
        return [self._verdict(reply, found) for reply, found in zip(replies, self.scorer.scores(replies), strict=True)]

    def _verdict(self, reply: Reply, found: list[float] | str) -> Verdict:
        if isinstance(found, str):
            return judged(self, Outcome.FAILED, reason=" ".join(found.split()))
        score = self._score(found)
        is_empty = not reply.text.strip()
        if not is_empty and self.threshold is not None and score >= self.threshold:
            outcome = Outcome.CORRECT
        elif not reply.is_ended:
            outcome = Outcome.TRUNCATED
        else:
            outcome = Outcome.UNPARSED if is_empty else Outcome.WRONG
        shown = f"{self.aggregation} of {len(found)} steps" if "steps" in self.scorer.facts else f"raw {found[-1]:.4g}"
        return Verdict(
            score=score,
            outcome=outcome,
            extracted=None,
            parts={"label_free": 1.0},
            reason=f"learned score {score:.4g} ({shown})",
            verifier=self.fingerprint,
        )

    def _score(self, found: list[float]) -> float:
        facts = self.scorer.facts
        if "steps" in facts:
            return aggregated([_sigmoid(score) for score in found], self.aggregation)
        raw = found[-1]
        if self.scale == "sigmoid":
            return _sigmoid(raw)
        return raw if self.scale == "raw" else (raw - facts["mean"]) / facts["deviation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedScorer:
    """Scores replies with a saved reward model and the template that it was trained with."""

    model: LoadedModel
    template: Template

    @staticmethod
    def load(folder: str) -> SavedScorer:
        """The scorer of a folder. Raises ModelError where it holds no reward model, or another tokenizer's template."""
        from lydian.models.reward_model import RewardModel as LoadedModel
        from lydian.text.template import make_template

        model = LoadedModel.load(folder)
        facts = model.facts
        head = model.policy.head
        if head is None or head.output != "score" or "template" not in facts:
            raise ModelError(
                where=folder,
                given="a classifier" if "classes" in facts else "a head without the template that it was trained with",
                expected="a reward model or a process reward model, as a run saves it",
                fix="Name the folder of a stage that trains one.",
            )
        template = make_template(facts["template"]["kind"], model.tokenizer, **facts["template"]["settings"])
        if template.fingerprint != facts["template_fingerprint"]:
            raise ModelError(
                where=folder,
                given="a tokenizer or template that is not the one that the model was trained with",
                expected="the same, by its fingerprint",
                fix="Restore the folder; a template that prints today's date needs a variable that fixes it.",
            )
        return SavedScorer(model=model, template=template)

    @property
    def digest(self) -> str:
        """Of the weights and of the template."""
        return f"{self.model.digest} {self.template.fingerprint}"

    @property
    def facts(self) -> dict[str, Any]:
        """The head's."""
        return self.model.facts

    def scores(self, replies: Sequence[Reply]) -> list[list[float] | str]:
        """All that can be read, in batches."""
        from lydian.models.reward_model import head_outputs

        encoded = [self._encoded(str(number), reply) for number, reply in enumerate(replies)]
        readable = [entry for entry in encoded if entry is not None and not isinstance(entry, str)]
        found = iter(head_outputs(self.model.policy, readable))
        return [entry if isinstance(entry, str) else [] if entry is None else next(found).tolist() for entry in encoded]

    def _encoded(self, name: str, reply: Reply) -> TokenSequence | str | None:
        """The reply with the sites to score it at, None if it has no steps, or why it cannot be read: what a model
        wrote never raises."""
        from lydian.text.label_sites import last_token, step_ends

        messages, is_ended = reply.messages, reply.is_ended
        try:
            rule = self.facts.get("steps")
            if rule is None:
                sequence = last_token(name, messages, reply.text, self.template, is_ended=is_ended)
            elif not reply.text.strip():
                return None
            else:
                sequence = step_ends(name, messages, reply.text, self.template, rule=rule, is_ended=is_ended)
        except LydianError as error:
            return f"the reward model cannot read it: {error}"
        most = self.model.max_tokens
        return sequence if len(sequence.tokens) <= most else f"{len(sequence.tokens)} tokens, the model reads {most}"


def aggregated(steps: Sequence[float], how: Aggregation) -> float:
    """One score of a reply's steps' probabilities, by name, 0 without steps; as `objectives.reward.aggregate_steps`.

    >>> [round(aggregated([0.9, 0.5, 0.8], how), 4) for how in get_args(Aggregation)], aggregated([], "min")
    ([0.5, 0.8, 0.36, 0.7333], 0.0)
    """
    if not steps:
        return 0.0
    if how == "mean":
        return math.fsum(steps) / len(steps)
    return steps[-1] if how == "last" else min(steps) if how == "min" else math.prod(steps)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


class _Scripted:
    """The scorer of the examples: it likes Paris, and is mute at "mute"."""

    digest = "scripted"
    facts: dict[str, Any] = {"mean": 0.0, "deviation": 2.0}  # noqa: RUF012

    def scores(self, replies: Sequence[Reply]) -> list[list[float] | str]:
        return ["mute" if reply.text == "mute" else [2.0 if "Paris" in reply.text else -2.0] for reply in replies]


_SETTINGS: dict[str, Any] = {"scorer": _Scripted(), "threshold": 0.5}

register(
    "reward_model",
    RewardModel,
    examples=(
        Example(gold=None, text="It is Paris.", settings=_SETTINGS, outcome=Outcome.CORRECT),
        Example(gold=None, text="Rome.", settings={**_SETTINGS, "scale": "sigmoid"}, outcome=Outcome.WRONG),
        Example(gold="Rome", text="Paris.", settings={**_SETTINGS, "scale": "normalised"}, outcome=Outcome.CORRECT),
        Example(gold=None, text="", settings=_SETTINGS, outcome=Outcome.UNPARSED),
        Example(gold=None, text="It is", settings=_SETTINGS, finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold=None, text="mute", settings=_SETTINGS, outcome=Outcome.FAILED),
    ),
)
