"""The signature is the schema: keyword-only parameters are the settings that a recipe's tables are checked against."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Strict, ValidationError, create_model
from pydantic_core import ErrorDetails, PydanticCustomError

from lydian.errors import LydianError, RecipeError

T = TypeVar("T")
REQUIRED: Final = inspect.Parameter.empty
"""The default of a setting that has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: a keyword-only parameter of a function, or a field of a dataclass.

    name     as written in a recipe
    type     its annotation, evaluated
    default  its default, or REQUIRED
    doc      what the docstring says of it; empty if nothing
    """

    name: str
    type: Any
    default: Any
    doc: str


class ErrorList:
    """Gathers everything that is wrong with a recipe, so that it is reported at once.

    >>> errors = ErrorList("recipe demo")
    >>> errors.add(where="seed", given="'3'", expected="a valid integer", fix="Write 3 without quotes.")
    >>> errors.lines()
    ["seed: got '3'; expected a valid integer. Write 3 without quotes."]
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.errors: list[LydianError] = []

    def add(self, *, where: str, given: object, expected: str, fix: str) -> None:
        self.errors.append(RecipeError(where=where, given=given, expected=expected, fix=fix))

    def add_unknown(self, where: str, name: str, known: Iterable[str], *, kind: str = "setting") -> None:
        """A name that is not among `known`: says which it may have been meant to be."""
        names = sorted(known)
        near = nearest(name, names)
        expected = f"one of {', '.join(names)}" if names else f"no {kind} here"
        fix = f"Did you mean {near}?" if near else "`lydian explain` lists the settings of a recipe."
        self.add(where=where, given=f"an unknown {kind} {name!r}", expected=expected, fix=fix)

    def lines(self) -> list[str]:
        return [str(error) for error in self.errors]

    def raise_if_any(self) -> None:
        """Raises one RecipeError that lists everything gathered; nothing if there is nothing."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise RecipeError(
                where=self.where,
                given=f"{len(self.errors)} settings that cannot be used:\n"
                + "".join(f"  {line}\n" for line in self.lines()),
                expected="a recipe in which every setting can be used",
                fix="Correct them; they are all listed above.",
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None.

    >>> nearest("clip_hgih", ["clip_low", "clip_high"])
    'clip_high'
    >>> nearest("clip_high", ["rounds", "objective.clip_high"])
    'objective.clip_high'
    """
    names = list(known)
    elsewhere = [other for other in names if other.rpartition(".")[2] == name]
    return next(iter(elsewhere or difflib.get_close_matches(name, names, n=1)), None)


def settings_of(function: Callable[..., Any]) -> list[Setting]:
    """The settings of a function or dataclass: its keyword-only parameters, with what the docstring says of each.

    A docstring line `name  text` (two blanks or more) documents `name`, or `a, b  text` both; lines indented deeper
    carry on. A parameter annotated `object` (or `object | None`) is handed over by code and is no setting.
    Raises NameError if an annotation cannot be evaluated in the function's module.

    >>> def clip(logprobs, *, clip_high: float = 0.2): "clip_high  the upper bound"
    >>> [(s.name, s.default, s.doc) for s in settings_of(clip)]
    [('clip_high', 0.2, 'the upper bound')]
    """
    owners = reversed(inspect.getmro(function)) if inspect.isclass(function) else [function]
    docs = {name: doc for owner in owners for name, doc in _documented(_docstring(owner)).items()}
    if dataclasses.is_dataclass(function):
        hints = get_type_hints(function)
        fields = [field for field in dataclasses.fields(function) if field.init]
        defaults = {field.name: _default_of(field) for field in fields}
    else:
        parameters = inspect.signature(function).parameters.values()
        settings = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        defaults = {p.name: p.default for p in settings}
        # Only these annotations are evaluated: those of the data may name things imported for type checking alone.
        annotations = {p.name: p.annotation for p in settings if p.annotation is not REQUIRED}
        written = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
        hints = get_type_hints(SimpleNamespace(__annotations__=annotations), getattr(written, "__globals__", {}))
    return [
        Setting(name=name, type=hints.get(name, Any), default=default, doc=docs.get(name, ""))
        for name, default in defaults.items()
        if object not in (hints.get(name), *get_args(hints.get(name)))
    ]


@cache
def settings_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A pydantic model with one field a setting.

    Unknown keys are refused and nothing is converted silently: "3" is no integer, 1 is no boolean, numbers are finite.
    An integer does for a float, a list for a tuple, a string for a path or a string enumeration, a table for a nested
    dataclass; what that table leaves out keeps the value it has in the default instance.
    """
    return _model(function, None)


def _model(function: Callable[..., Any], instance: object) -> type[BaseModel]:
    """The model of `function`; where there is an `instance`, its values are the defaults."""
    fields: dict[str, Any] = {}
    for setting in settings_of(function):
        default = setting.default if instance is None else getattr(instance, setting.name)
        fields[setting.name] = (_checked(setting.type, default), ... if default is REQUIRED else default)
    config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), arbitrary_types_allowed=True
    )
    return create_model(_name_of(function), __config__=config, **fields)


def bind(
    function: Callable[..., Any],
    table: object,
    *,
    where: str,
    errors: ErrorList,
    neighbours: Seq[str] = (),
) -> dict[str, Any] | None:
    """The settings of `function` as `table` gives them, every default explicit; None if something is wrong.

    Everything wrong goes to `errors`, each with its place under `where`. `neighbours` are keys that belong to the same
    table but not to this function; they are suggested, not accepted.

    >>> def clip(*, clip_low: float = 0.2, clip_high: float = 0.2): ...
    >>> errors = ErrorList("recipe demo")
    >>> bind(clip, {"clip_high": 1}, where="stages[0].objective", errors=errors)
    {'clip_low': 0.2, 'clip_high': 1.0}
    >>> bind(clip, {"clip_hgih": 0.3}, where="stages[0].objective", errors=errors)
    >>> errors.errors[0].where, errors.errors[0].fix
    ('stages[0].objective.clip_hgih', 'Did you mean clip_high?')
    """
    if not isinstance(table, Mapping):
        errors.add(where=where, given=repr(table), expected="a table of settings", fix="Write `key = value` lines.")
        return None
    model = settings_model(function)
    try:
        bound = model.model_validate(dict(table))
    except ValidationError as error:
        _report(error, function, table, where, errors, neighbours)
        return None
    return {name: getattr(bound, name) for name in model.model_fields}


def bind_dataclass(
    kind: Callable[..., T], table: object, *, where: str, errors: ErrorList, neighbours: Seq[str] = ()
) -> T | None:
    """An instance of the dataclass `kind` from `table`; None if something is wrong, with all of it in `errors`."""
    settings = bind(kind, table, where=where, errors=errors, neighbours=neighbours)
    if settings is None:
        return None
    try:
        return kind(**settings)
    except LydianError as error:
        place = _join(where, _field_named(kind, error.where))
        errors.add(where=place, given=error.given, expected=error.expected, fix=error.fix)
        return None


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def _docstring(owner: Any) -> str:
    # Each class speaks of its own settings: inspect.getdoc would hand down a parent's text, but not together with it.
    return inspect.cleandoc(getattr(owner, "__doc__", None) or "")


def _documented(docstring: str) -> dict[str, str]:
    """What each name's `name  text` line says, continuation lines joined."""
    docs: dict[str, str] = {}
    current: tuple[str, ...] = ()
    depth = 0
    for line in docstring.splitlines():
        indent = len(line) - len(line.lstrip())
        begins = re.match(r"\s*(\w+(?:, \w+)*)\s{2,}(\S.*)$", line)
        if current and line.strip() and indent > depth:
            docs |= {name: f"{docs[name]} {line.strip()}" for name in current}
        elif begins:
            current, depth = tuple(begins[1].split(", ")), indent
            docs |= {name: begins[2].strip() for name in current}
        else:
            current = ()
    return docs


def _checked(kind: Any, default: Any = None) -> Any:
    """The annotation `kind` as pydantic is to check it: tables for dataclasses, lists for tuples, all else strict."""
    origin, arguments = get_origin(kind), get_args(kind)
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
        model = _model(kind, default if isinstance(default, kind) else None)
        return Annotated[model, AfterValidator(lambda bound: _construct(kind, bound))]
    if origin in (Union, UnionType):
        return Union[tuple(_checked(argument) for argument in arguments)]  # noqa: UP007
    if origin is tuple:
        inner = tuple(argument if argument is Ellipsis else _checked(argument) for argument in arguments)
        return Annotated[tuple[inner], Strict(False)]  # type: ignore[valid-type]
    if inspect.isclass(kind) and issubclass(kind, Enum | PurePath):
        return Annotated[kind, Strict(False)]
    return kind


def _construct(kind: Callable[..., Any], model: BaseModel) -> Any:
    try:
        return kind(**{name: getattr(model, name) for name in type(model).model_fields})
    except LydianError as error:
        facts = {
            "field": _field_named(kind, error.where), "given": str(error.given), "expected": error.expected,
            "fix": error.fix,
        }  # fmt: skip
        raise PydanticCustomError("refused", "{expected}", facts) from error


def _field_named(kind: Callable[..., Any], where: str) -> str:
    """The field that a constructor's error speaks of (`Sampling.top_p` → `top_p`), or nothing."""
    last = where.rpartition(".")[2]
    return last if last in {setting.name for setting in settings_of(kind)} else ""


def _report(
    error: ValidationError,
    function: Callable[..., Any],
    table: Mapping[str, Any],
    where: str,
    errors: ErrorList,
    neighbours: Seq[str],
) -> None:
    """Each of pydantic's errors as one of ours; the alternatives of a union are one error that names them all."""
    gathered: dict[str, list[ErrorDetails]] = {}
    inner: dict[str, tuple[int | str, ...]] = {}
    for details in error.errors(include_url=False):
        location = _in_table(details, table)
        place = where
        for part in location:
            place = _join(place, part)
        gathered.setdefault(place, []).append(details)
        inner[place] = location
    for place, alternatives in gathered.items():
        location = inner[place]
        # One alternative of a union may not know a key that another knows and refuses for its value.
        judged = [d for d in alternatives if d["type"] not in ("extra_forbidden", "missing")] or alternatives
        first = judged[0]
        if first["type"] == "extra_forbidden":
            known = _known_names(function, location[:-1]) + (list(neighbours) if len(location) == 1 else [])
            errors.add_unknown(place, str(location[-1]), known)
        elif first["type"] == "missing":
            errors.add(where=place, given="nothing", expected="a value", fix="Set it: it has no default.")
        elif first["type"] == "refused":
            facts = first["ctx"]
            errors.add(
                where=_join(place, facts["field"]), given=facts["given"], expected=facts["expected"], fix=facts["fix"]
            )
        else:
            wanted = dict.fromkeys(details["msg"].removeprefix("Input should be ") for details in judged)
            errors.add(where=place, given=repr(first["input"]), expected=" or ".join(wanted), fix=_advice(first))


def _advice(details: ErrorDetails) -> str:
    """What to do about a value of the wrong type."""
    given = details["input"]
    if details["type"] in ("int_type", "float_type", "bool_type") and isinstance(given, str):
        return "Write the value without quotes."
    choices = re.findall(r"'([^']*)'", details["msg"]) if details["type"] == "literal_error" else []
    near = nearest(given, choices) if isinstance(given, str) else None
    return f"Did you mean {near}?" if near else "Change the value."


def _in_table(details: ErrorDetails, table: object) -> tuple[int | str, ...]:
    """The place of an error in the table itself: pydantic adds the names of a union's alternatives, which we drop."""
    value, kept = table, []
    *parts, last = details["loc"]
    for part in (*parts, last):
        keys = range(len(value)) if isinstance(value, list | tuple) else value if isinstance(value, Mapping) else ()
        if part in keys:
            value = value[part]  # type: ignore[index]
        elif not (part is last and details["type"] == "missing"):
            continue
        kept.append(part)
    return tuple(kept)


def _known_names(function: Callable[..., Any], location: Iterable[int | str]) -> list[str]:
    """The settings known at a place inside a table bound to `function`."""
    kinds: list[Any] = [function]
    for part in location:
        if isinstance(part, str):
            kinds = [s.type for kind in kinds for s in settings_of(kind) if s.name == part]
        kinds = [kind for outer in kinds for kind in _dataclasses_in(outer)]
    return [setting.name for kind in kinds for setting in settings_of(kind)]


def _dataclasses_in(kind: Any) -> list[Any]:
    if inspect.isclass(kind) and dataclasses.is_dataclass(kind):
        return [kind]
    return [found for argument in get_args(kind) if argument is not NoneType for found in _dataclasses_in(argument)]


def _join(place: str, part: int | str) -> str:
    if isinstance(part, int):
        return f"{place}[{part}]"
    return f"{place}.{part}" if place and part else place or part
