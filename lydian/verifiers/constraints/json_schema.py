"""JSON as a model writes it, and a small subset of JSON Schema to check it by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_KEYWORDS = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "title",
        "description",
        "$schema",
    ]
)


class NotJson(Exception):
    """The text is no JSON value; the message says where."""


def parse_json(text: str) -> Any:
    """The JSON value that is the whole text, a Markdown code fence around it aside. Raises NotJson.

    Strict: no NaN or Infinity, no comments, no trailing text, no key twice in an object.

    >>> parse_json('```json\\n{"a": [1, 2]}\\n```')
    {'a': [1, 2]}
    """
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped)
    try:
        return json.loads(fenced[1] if fenced else stripped, parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"no JSON: {error}"[:160]) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object with one key twice")
    return dict(pairs)


def schema_fault(schema: Any, *, where: str = "schema") -> str:
    """What is wrong with a schema itself: a keyword outside the subset would be ignored silently; "" if nothing.

    >>> schema_fault({"type": "object", "oneOf": []})
    "schema: unknown keyword 'oneOf'"
    """
    if not isinstance(schema, Mapping):
        return f"{where}: not a table"
    unknown = sorted(set(schema) - _KEYWORDS)
    if unknown:
        return f"{where}: unknown keyword {unknown[0]!r}"
    if not set(_list(schema.get("type", []))) <= set(_TYPES):
        return f"{where}: unknown type {schema['type']!r}"
    inner = [(f"{where}.{key}", value) for key, value in schema.get("properties", {}).items()]
    inner += [(f"{where}.{key}", schema[key]) for key in ("items",) if key in schema]
    if isinstance(schema.get("additionalProperties"), Mapping):
        inner.append((f"{where}.additionalProperties", schema["additionalProperties"]))
    return next(filter(None, (schema_fault(value, where=name) for name, value in inner)), "")


def value_fault(value: Any, schema: Mapping[str, Any], *, where: str = "$") -> str:
    """Where the value breaks the schema, "" if nowhere.

    The subset: type, properties, required, additionalProperties, items, enum, const, minimum, maximum, minLength,
    maxLength, minItems, maxItems.

    Source: JSON Schema 2020-12, Validation, sections 6.1 to 6.5.

    >>> value_fault({"age": "7"}, {"properties": {"age": {"type": "integer"}}})
    '$.age is no integer'
    """
    kinds = _list(schema.get("type", []))
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        return f"{where} is no {' or '.join(kinds)}"
    if "enum" in schema and not any(_is_same(value, allowed) for allowed in schema["enum"]):
        return f"{where} is none of the allowed values"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"{where} is not {schema['const']!r:.40}"
    if isinstance(value, dict):
        return _object_fault(value, schema, where)
    if isinstance(value, list):
        rule = schema.get("items")
        inner = [value_fault(item, rule, where=f"{where}[{i}]") for i, item in enumerate(value)] if rule else []
        return _size_fault(len(value), schema, "Items", where) or next(filter(None, inner), "")
    if isinstance(value, str):
        return _size_fault(len(value), schema, "Length", where)
    if _is_kind(value, "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{where} = {value!r:.40} is out of range"
    return ""


def _object_fault(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str:
    missing = [key for key in schema.get("required", []) if key not in value]
    if missing:
        return f"{where} lacks {missing[0]!r}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, inner in value.items():
        if key not in known and others is False:
            return f"{where} has {key[:40]!r}, which is not allowed"
        rule = known.get(key, others if isinstance(others, Mapping) else {})
        fault = value_fault(inner, rule, where=f"{where}.{key[:40]}") if rule else ""
        if fault:
            return fault
    return ""


def _size_fault(size: int, schema: Mapping[str, Any], kind: str, where: str) -> str:
    within = schema.get(f"min{kind}", 0) <= size <= schema.get(f"max{kind}", size)
    return "" if within else f"{where} has a length of {size}"


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _is_same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value)
