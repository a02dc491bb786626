"""The table of constraints: what each is called, which parameters it takes, and examples of it kept and broken.

To add one: write a function of the reply with keyword-only parameters that returns what is wrong ("" if nothing), and
decorate it with `constraint`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

from lydian.errors import RecipeError

Rule = Callable[..., str]
"""A reply and keyword-only parameters in; what is wrong out, or "" if the reply keeps the constraint."""

RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "less than": lambda count, wanted: count < wanted,
    "at least": lambda count, wanted: count >= wanted,
    "at most": lambda count, wanted: count <= wanted,
    "more than": lambda count, wanted: count > wanted,
    "exactly": lambda count, wanted: count == wanted,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A reply to a constraint with these parameters, and whether it keeps it."""

    parameters: Mapping[str, Any]
    reply: str
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of constraint.

    name       our name
    published  the ids it has in published sets (IFEval, IFBench), if any
    renamed    published parameter name → ours
    """

    name: str
    rule: Rule
    published: tuple[str, ...]
    renamed: Mapping[str, str]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A kind with its parameters.

    Example: `make_constraint("no_comma", {})`
    """

    name: str
    find_fault: Callable[[str], str]


KINDS: dict[str, Kind] = {}
"""All constraints, by our name and by every published id."""


def constraint(
    *published: str,
    kept: Sequence[tuple[Mapping[str, Any], str]],
    broken: Sequence[tuple[Mapping[str, Any], str]],
    renamed: Mapping[str, str] | None = None,
) -> Callable[[Rule], Rule]:
    """Enters a rule in the table, under its function's name and the published ids.

    kept, broken  (parameters, reply) that must, and must not, keep the constraint
    renamed       published parameter name → ours

    Raises RecipeError for a name that is taken or a side without examples.
    """

    def enter(rule: Rule) -> Rule:
        name = rule.__name__
        taken = [known for known in (name, *published) if known in KINDS]
        if taken or not kept or not broken:
            raise RecipeError(
                where=f"constraint {name!r}",
                given=f"the taken name {taken[0]!r}" if taken else "examples of one side only",
                expected="a new name, a reply that keeps it and one that does not",
                fix="Choose another name or add the missing example.",
            )
        cases = [Case(parameters=given, reply=reply, is_kept=True) for given, reply in kept]
        cases += [Case(parameters=given, reply=reply, is_kept=False) for given, reply in broken]
        kind = Kind(name=name, rule=rule, published=published, renamed=renamed or {}, cases=tuple(cases))
        KINDS.update(dict.fromkeys((name, *published), kind))
        return rule

    return enter


def make_constraint(name: str, parameters: Mapping[str, Any]) -> Constraint:
    """The constraint of that kind with these parameters; a parameter that is None counts as not given.

    Raises ValueError, saying what is wrong, for an unknown kind, an unknown or missing parameter, or one of the wrong
    type or range: a constraint that is not understood must not pass silently.

    >>> make_constraint("keywords:existence", {"keywords": ["war"]}).find_fault("We look forward to it.")
    "no 'war'"
    """
    if name not in KINDS:
        raise ValueError(f"no constraint is called {name!r}")
    kind = KINDS[name]
    given = {kind.renamed.get(key, key): value for key, value in parameters.items() if value is not None}
    signature = inspect.signature(kind.rule).parameters
    known = {key: p for key, p in signature.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    unknown = sorted(set(given) - set(known))
    missing = sorted(key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in given)
    if unknown or missing:
        what = f"no parameter {unknown[0]!r}" if unknown else f"no {missing[0]!r} given"
        raise ValueError(f"{name}: {what}; its parameters are {', '.join(known) or 'none'}")
    hints = get_type_hints(kind.rule)
    bound = {key: _typed(f"{name}: {key}", value, hints[key]) for key, value in given.items()}
    made = Constraint(name=name, find_fault=partial(kind.rule, **bound))
    made.find_fault("A probe.")  # parameters that cannot be used raise here, not when a model is judged
    return made


def _typed(where: str, value: Any, kind: Any) -> Any:
    """The value as `kind`; columns of tables often hold 3.0 for 3, and one word for a list of one."""
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is int or kind is float:
        fits = isinstance(value, kind) and not isinstance(value, bool) and value >= 0
    elif kind is str:
        fits = isinstance(value, str) and bool(value.strip())
    elif kind == Sequence[str]:
        value = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else []
        fits = bool(value) and all(isinstance(item, str) and item.strip() for item in value)
    else:
        fits = isinstance(value, Mapping)
    if not fits:
        raise ValueError(f"{where} cannot be {value!r:.60}")
    return value


def compared(count: float, relation: str, wanted: float, what: str) -> str:
    """The fault of a count; "" if it stands in the relation. Raises ValueError for a relation that does not exist.

    >>> compared(3, "less than", 2, "words")
    '3 words, not less than 2'
    """
    if relation not in RELATIONS:
        raise ValueError(f"the relation {relation!r:.40} is none of {', '.join(RELATIONS)}")
    return "" if RELATIONS[relation](count, wanted) else f"{count:g} {what}, not {relation} {wanted:g}"
