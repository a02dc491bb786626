"""`all_of`, `weighted`, `threshold`, `by_field`: verifiers made of verifiers, whose scores stay apart in `parts`.

In a recipe:

    verifier = {name = "all_of", parts = {format = {name = "r1_format"}, content = {name = "math"}}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.verifier import (
    LABEL_FREE,
    Example,
    Verifier,
    fingerprint,
    is_label_free,
    make_verifier,
    register,
    unreadable_gold,
    verify_all,
)

_GRAVITY = (Outcome.TRUNCATED, Outcome.UNPARSED, Outcome.WRONG)


class _Composite:
    """What all share: parts judge all items at once, each in its own way, and a verdict is made of their verdicts."""

    name: str
    fingerprint: str
    parts: dict[str, Verifier]

    def _set_parts(self, parts: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
        self.parts = _make_parts(self.name, parts)
        prints = [[name, part.fingerprint] for name, part in self.parts.items()]
        mark = LABEL_FREE if any(is_label_free(part) for _, part in prints) else ""
        self.fingerprint = mark + fingerprint(self.name, {"parts": prints, **settings})

    def check(self, problem: Problem) -> None:
        for part in self.parts.values():
            part.check(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return self.verify_many([(problem, text, finish)])[0]

    def verify_many(self, items: Sequence[tuple[Problem, str, Finish]]) -> list[Verdict]:
        """A verdict an item, in order."""
        judged = {name: verify_all(part, items) for name, part in self.parts.items()}
        return [self._join({name: verdicts[i] for name, verdicts in judged.items()}) for i in range(len(items))]

    def _join(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        raise NotImplementedError


class AllOf(_Composite):
    """Every part must be right: the score is the product of the parts' scores.

    parts  name → table with a verifier's `name` and its settings

    The outcome is CORRECT if every part's is, else the first that occurs of FAILED (then there is no score), TRUNCATED,
    UNPARSED, WRONG. `parts` of the verdict holds every part's score, a failed one's excepted, under its name; the parts
    of a part as `name.inner`. `extracted` is the first part's that has one.
    """

    name = "all_of"

    def __init__(self, *, parts: Mapping[str, Mapping[str, Any]]) -> None:
        self._set_parts(parts)

    def _join(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        score = math.prod(verdict.score or 0.0 for verdict in verdicts.values())
        return _combine(self, verdicts, score, _joint_outcome(verdicts))


class Weighted(_Composite):
    """The weighted sum of the parts' scores, score = Σ weightᵢ · scoreᵢ.

    parts       name → table with a verifier's `name` and its settings
    weights     name → weight; a weight of 0 only records the part
    decided_by  the part whose outcome (and so: accuracy) is the whole's; None: as `all_of`

    A FAILED part leaves the whole without a score, unless its weight is 0 and it does not decide. `parts` and
    `extracted` of the verdict are as in `all_of`.
    """

    name = "weighted"

    def __init__(
        self,
        *,
        parts: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, float],
        decided_by: str | None = None,
    ) -> None:
        self._set_parts(parts, weights=dict(weights), decided_by=decided_by)
        if set(weights) != set(self.parts) or not all(math.isfinite(weight) for weight in weights.values()):
            raise RecipeError(
                where="weighted.weights",
                given=repr(dict(weights)),
                expected=f"one finite number for each of {', '.join(self.parts)}",
                fix="Give every part a weight (0 only records it).",
            )
        if decided_by is not None and decided_by not in self.parts:
            raise RecipeError(
                where="weighted.decided_by",
                given=repr(decided_by),
                expected=f"one of {', '.join(self.parts)}",
                fix="Name the part whose outcome counts, or leave it out.",
            )
        self.weights = dict(weights)
        self.decided_by = decided_by

    def _join(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        score = sum(self.weights[name] * (verdict.score or 0.0) for name, verdict in verdicts.items())
        deciding = {self.decided_by: verdicts[self.decided_by]} if self.decided_by else verdicts
        needed = {name: v for name, v in verdicts.items() if self.weights[name] != 0 or name in deciding}
        is_failed = any(verdict.outcome is Outcome.FAILED for verdict in needed.values())
        return _combine(self, verdicts, score, Outcome.FAILED if is_failed else _joint_outcome(deciding))


class Threshold(_Composite):
    """CORRECT, with score 1, exactly where a part's score is at least so much; else the score is 0.

    parts     name → table with a verifier's `name` and its settings; one part
    at_least  the score from which on it is CORRECT

    The outcome below the threshold is the part's own, WRONG where that was CORRECT; a FAILED part leaves no score.
    `parts` and `extracted` of the verdict are as in `all_of`, so the part's own score is kept.
    """

    name = "threshold"

    def __init__(self, *, parts: Mapping[str, Mapping[str, Any]], at_least: float) -> None:
        self._set_parts(parts, at_least=at_least)
        if len(self.parts) != 1 or not math.isfinite(at_least):
            raise RecipeError(
                where="threshold",
                given=f"{len(self.parts)} parts, at_least={at_least!r}",
                expected="one part and a finite number",
                fix="Join several parts by `weighted` or `all_of` first.",
            )
        self.at_least = at_least

    def _join(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        ((name, verdict),) = verdicts.items()
        is_reached = verdict.score is not None and verdict.score >= self.at_least
        below = Outcome.WRONG if verdict.is_correct else verdict.outcome
        return _combine(self, {name: verdict}, float(is_reached), Outcome.CORRECT if is_reached else below)


class ByField(_Composite):
    """The verifier that a field of the problem's metadata names: mixed problems in one run.

    field    the metadata's key
    choices  value of the field, as text → table with a verifier's `name` and its settings
    default  the choice for problems without the field; None: such problems are refused when they are loaded

    Score, outcome and `extracted` are the chosen verifier's; `parts` has its score under the value, and its own parts
    as `value.inner`.
    """

    name = "by_field"

    def __init__(self, *, field: str, choices: Mapping[str, Mapping[str, Any]], default: str | None = None) -> None:
        self._set_parts(choices, field=field, default=default)
        if default is not None and default not in self.parts:
            raise RecipeError(
                where="by_field.default",
                given=repr(default),
                expected=f"one of {', '.join(self.parts)}",
                fix="Name one of the choices, or leave it out.",
            )
        self.field = field
        self.default = default

    def check(self, problem: Problem) -> None:
        self.parts[self._chosen(problem)].check(problem)

    def verify_many(self, items: Sequence[tuple[Problem, str, Finish]]) -> list[Verdict]:
        """A verdict an item, in order, each by the part that its problem chooses."""
        chosen = [self._chosen(problem) for problem, _, _ in items]
        verdicts: dict[int, Verdict] = {}
        for name, part in self.parts.items():
            places = [i for i, choice in enumerate(chosen) if choice == name]
            for i, verdict in zip(places, verify_all(part, [items[i] for i in places]), strict=True):
                verdicts[i] = _combine(self, {name: verdict}, verdict.score or 0.0, verdict.outcome)
        return [verdicts[i] for i in range(len(items))]

    def _chosen(self, problem: Problem) -> str:
        value = str(problem.metadata.get(self.field, self.default))
        if value not in self.parts:
            known = ", ".join(self.parts)
            raise unreadable_gold(
                problem, self, expected=f"metadata {self.field!r} to be one of {known}, not {value:.60}"
            )
        return value


def _make_parts(composite: str, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Verifier]:
    for name, table in parts.items() or [("", {})]:
        if not name or "." in name or "name" not in table:
            raise RecipeError(
                where=f"{composite}.parts.{name}",
                given=repr(dict(table)) if parts else "no parts",
                expected="a part's name without dots, and for it a table with the `name` of a verifier",
                fix='Write, for example, content = {name = "numeric"}.',
            )
    made = {name: make_verifier(**table) for name, table in parts.items()}
    for name, part in made.items():
        if getattr(part, "needs_tokens", False):
            raise RecipeError(
                where=f"{composite}.parts.{name}",
                given=f"{part.name}, which reads the tokens of a completion",
                expected="a verifier that reads texts",
                fix=f"Use {part.name} alone.",
            )
    return made


def _joint_outcome(verdicts: Mapping[Any, Verdict]) -> Outcome:
    outcomes = {verdict.outcome for verdict in verdicts.values()}
    return next((outcome for outcome in (Outcome.FAILED, *_GRAVITY) if outcome in outcomes), Outcome.CORRECT)


def _combine(verifier: Verifier, verdicts: Mapping[str, Verdict], score: float, outcome: Outcome) -> Verdict:
    scores: dict[str, float] = {}
    for name, verdict in verdicts.items():
        if verdict.score is not None:
            scores[name] = verdict.score
        scores |= {f"{name}.{inner}": value for inner, value in verdict.parts.items()}
    return Verdict(
        score=None if outcome is Outcome.FAILED else score,
        outcome=outcome,
        extracted=next((v.extracted for v in verdicts.values() if v.extracted is not None), None),
        parts=scores,
        reason="; ".join(f"{name}: {verdict.reason}" for name, verdict in verdicts.items()),
        verifier=verifier.fingerprint,
    )


_PARTS = {"format": {"name": "format"}, "content": {"name": "numeric"}}
_WEIGHTED = {"parts": _PARTS, "weights": {"format": 0.2, "content": 0.8}, "decided_by": "content"}
_HALF = {"parts": {"both": {"name": "weighted", **_WEIGHTED}}, "at_least": 0.5}
_CHOICES = {
    "field": "kind",
    "choices": {"number": {"name": "numeric"}, "letter": {"name": "choice"}},
    "default": "number",
}

register(
    "all_of",
    AllOf,
    examples=(
        Example(
            gold="4", text="<answer>4</answer>", settings={"parts": _PARTS}, outcome=Outcome.CORRECT, extracted="4"
        ),
        Example(gold="4", text="The answer is 4.", settings={"parts": _PARTS}, outcome=Outcome.WRONG, extracted="4"),
        Example(gold="4", text="<answer>four</answer>", settings={"parts": _PARTS}, outcome=Outcome.UNPARSED),
    ),
)
register(
    "weighted",
    Weighted,
    examples=(
        Example(gold="4", text="The answer is 4.", settings=_WEIGHTED, outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="<answer>5</answer>", settings=_WEIGHTED, outcome=Outcome.WRONG, extracted="5"),
    ),
)
register(
    "threshold",
    Threshold,
    examples=(
        Example(gold="4", text="<answer>4</answer>", settings=_HALF, outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="<answer>5</answer>", settings=_HALF, outcome=Outcome.WRONG, extracted="5"),
    ),
)
register(
    "by_field",
    ByField,
    examples=(
        Example(gold="4", text="It is 4.", settings=_CHOICES, outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="It is 5.", settings=_CHOICES, outcome=Outcome.WRONG, extracted="5"),
    ),
)
