"""`constraints`: does the reply follow verifiable instructions (lengths, keywords, layout, language, JSON, …)?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import lydian.verifiers.constraints.layout
import lydian.verifiers.constraints.more
import lydian.verifiers.constraints.rules
import lydian.verifiers.constraints.sentences  # noqa: F401  enters the kinds in the table
from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.constraints.prose import plain
from lydian.verifiers.constraints.table import Constraint, make_constraint
from lydian.verifiers.reading import NoAnswer, after_reasoning
from lydian.verifiers.verifier import Example, fingerprint, not_found, register, unreadable_gold

MAX_CHARACTERS = 200_000
"""A longer reply follows nothing."""


class Constraints:
    """The reply follows every constraint. Only what stands after the reasoning counts; an empty reply follows nothing.

    A problem brings its constraints in its answer (JSON), or in its metadata under `constraints`, or in the columns
    `instruction_id_list` and `kwargs` of IFEval; the setting adds to them. One constraint is a table: `kind` and its
    parameters beside it, or `instruction_id` and `kwargs`. Kinds and parameters are those of
    `lydian.verifiers.constraints.rules`, by our names or the published ones.

    mode         "strict": the reply as it is; "loose": the best of IFEval's eight readings of it, for each constraint
                 (without its first line, its last line, both; each also without asterisks)
    score        "all": 1 if every constraint is followed, else 0; "share": the share that is
    constraints  constraints of all problems

    `parts` has 1 or 0 for each constraint, under its name (`name#2` for the second of a name). Outcomes: CORRECT, all
    are followed; TRUNCATED (score 0), the completion was cut off: what it would have gone on to say is not known;
    UNPARSED, the reasoning does not end; else WRONG.

    Source: arXiv:2311.07911, section 2 (loose accuracy).
    """

    name = "constraints"

    def __init__(
        self,
        *,
        mode: Literal["strict", "loose"] = "strict",
        score: Literal["all", "share"] = "all",
        constraints: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        for setting, given, allowed in (("mode", mode, ("strict", "loose")), ("score", score, ("all", "share"))):
            if given not in allowed:
                raise _bad_setting(setting, given, " or ".join(allowed))
        try:
            self._shared = [_read(table) for table in constraints]
        except ValueError as error:
            raise _bad_setting("constraints", constraints, f"constraints that can be read ({error})") from error
        self.mode = mode
        self.score = score
        settings = {"mode": mode, "score": score, "constraints": [dict(table) for table in constraints]}
        self.fingerprint = fingerprint(self.name, settings)

    def check(self, problem: Problem) -> None:
        self._constraints(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        constraints = self._constraints(problem)
        try:
            reply = after_reasoning(text)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        faults = [self._fault(constraint, reply) for constraint in constraints]
        kept = [float(not fault) for fault in faults]
        parts = dict(zip(_names(constraints), kept, strict=True))
        reason = "; ".join(f"{name}: {fault}" for name, fault in zip(parts, faults, strict=True) if fault)
        if finish is not Finish.STOP:
            outcome, score, reason = Outcome.TRUNCATED, 0.0, f"cut off ({finish}); {reason}"
        else:
            outcome = Outcome.CORRECT if all(kept) else Outcome.WRONG
            score = float(all(kept)) if self.score == "all" else sum(kept) / len(kept)
        return Verdict(
            score=score,
            outcome=outcome,
            extracted=None,
            parts=parts,
            reason=" ".join(reason.split()) or "all followed",
            verifier=self.fingerprint,
        )

    def _fault(self, constraint: Constraint, reply: str) -> str:
        """What is wrong with the reply, by the mode's reading that suits it best."""
        if len(reply) > MAX_CHARACTERS:
            return f"a reply of more than {MAX_CHARACTERS} characters"
        readings = [reply] if self.mode == "strict" else loose_readings(reply)
        faults = [
            constraint.find_fault(plain(reading)) if reading.strip() else "an empty reply" for reading in readings
        ]
        return faults[0] if all(faults) else ""

    def _constraints(self, problem: Problem) -> list[Constraint]:
        try:
            constraints = [*_of_problem(problem), *self._shared]
        except ValueError as error:
            raise unreadable_gold(problem, self, expected=f"constraints that can be read ({error})") from error
        if not constraints:
            raise unreadable_gold(problem, self, expected="at least one constraint")
        return constraints


def loose_readings(reply: str) -> list[str]:
    """The reply, then without its first line, last line, both; then the four without asterisks.

    >>> loose_readings("Sure:\\n*Hi*\\nBye")[1:5]
    ['*Hi*\\nBye', 'Sure:\\n*Hi*', '*Hi*', 'Sure:\\nHi\\nBye']
    """
    lines = reply.split("\n")
    cuts: list[Callable[[], list[str]]] = [lambda: lines, lambda: lines[1:], lambda: lines[:-1], lambda: lines[1:-1]]
    readings = ["\n".join(cut()).strip() for cut in cuts]
    return [reply, *readings[1:], *(reading.replace("*", "") for reading in readings)]


def _of_problem(problem: Problem) -> list[Constraint]:
    """The constraints that a problem brings. Raises ValueError."""
    found: list[Constraint] = []
    if problem.answer is not None and problem.answer.strip():
        found += _read_all(json.loads(problem.answer))
    if "constraints" in problem.metadata:
        found += _read_all(_decoded(problem.metadata["constraints"]))
    if "instruction_id_list" in problem.metadata:
        found += _read_all({key: problem.metadata.get(key) for key in ("instruction_id_list", "kwargs")})
    return found


def _read_all(given: Any) -> list[Constraint]:
    if isinstance(given, Mapping) and "instruction_id_list" in given:
        names, kwargs = _decoded(given["instruction_id_list"]), _decoded(given.get("kwargs")) or []
        if not isinstance(names, Sequence) or not isinstance(kwargs, Sequence) or len(names) != len(kwargs):
            raise ValueError("instruction_id_list and kwargs are not two lists of one length")
        return [make_constraint(name, _table(_decoded(each))) for name, each in zip(names, kwargs, strict=True)]
    tables = [given] if isinstance(given, Mapping) else given
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        raise ValueError("neither a table nor a list of tables")
    return [_read(table) for table in tables]


def _read(given: Any) -> Constraint:
    table = dict(_table(given))
    if "instruction_id" in table:
        return make_constraint(str(table["instruction_id"]), _table(_decoded(table.get("kwargs"))))
    if "kind" not in table:
        raise ValueError(f"no `kind` in {table!r:.80}")
    return make_constraint(str(table.pop("kind")), table)


def _decoded(value: object) -> Any:
    """Columns of tables sometimes hold JSON as text."""
    return json.loads(value) if isinstance(value, str) else value


def _table(value: Any) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.80} is no table")
    return value or {}


def _names(constraints: Sequence[Constraint]) -> list[str]:
    names: list[str] = []
    for constraint in constraints:
        number = sum(name.split("#")[0] == constraint.name for name in names) + 1
        names.append(constraint.name if number == 1 else f"{constraint.name}#{number}")
    return names


def _bad_setting(name: str, given: object, expected: str) -> RecipeError:
    return RecipeError(
        where=f"constraints.{name}", given=f"{given!r:.200}", expected=expected, fix="Correct the setting."
    )


_PUBLISHED = '{"instruction_id": "keywords:existence", "kwargs": {"keywords": ["war"]}}'
_TWO = '[{"kind": "no_comma"}, {"kind": "number_words", "num_words": 3}]'
_START = '{"kind": "start_phrase", "start_phrase": "Dear"}'

register(
    "constraints",
    Constraints,
    examples=(
        Example(gold=_PUBLISHED, text="The War is over.", outcome=Outcome.CORRECT),
        Example(gold=_PUBLISHED, text="<think>war</think>We look forward.", outcome=Outcome.WRONG),
        Example(gold=_PUBLISHED, text="", outcome=Outcome.WRONG),
        Example(gold=_PUBLISHED, text="<think>The war", outcome=Outcome.UNPARSED),
        Example(gold=_PUBLISHED, text="The war and", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold=_TWO, text="Three words here.", outcome=Outcome.CORRECT),
        Example(gold=_TWO, text="Two words", settings={"score": "share"}, outcome=Outcome.WRONG),
        Example(gold=_START, text="Here it is:\nDear Sir", outcome=Outcome.WRONG),
        Example(gold=_START, text="Here it is:\nDear Sir", settings={"mode": "loose"}, outcome=Outcome.CORRECT),
        Example(gold=None, text="No comma", settings={"constraints": [{"kind": "no_comma"}]}, outcome=Outcome.CORRECT),
    ),
)
