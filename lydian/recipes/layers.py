"""A recipe before it is bound: the file's table, overrides put over it, and a note of who set what."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lydian.errors import RecipeError
from lydian.recipes.bind import ErrorList, nearest
from lydian.recipes.recipe import DataSettings

SHIPPED = Path(__file__).parent / "shipped"
NAMED = ("verifier",)
"""Tables that may be written as a string, their `name`."""


@dataclass(slots=True)
class Layers:
    """The table of a recipe and, for each key in it, where its value came from.

    table    as tomllib gives it; short forms written out
    origins  place (`stages[0].rounds`) → "file x.toml", "override", "default of grpo"
    errors   overrides that could not be applied
    """

    table: dict[str, Any]
    errors: ErrorList
    origins: dict[str, str] = field(default_factory=dict)

    def record(self, place: str, value: Any, origin: str) -> None:
        """Notes who set `value`, and everything in it if it is a table."""
        self.origins = {key: by for key, by in self.origins.items() if not _is_inside(key, place)}
        self.origins.update(dict.fromkeys(_leaves(place, value), origin))

    def origin(self, place: str) -> str:
        """Who set the value at a place; a table's note speaks for what lies in it."""
        while place:
            if place in self.origins:
                return self.origins[place]
            place = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)$", "", place)
        return "default"

    def lay_under(self, place: str, table: dict[str, Any], defaults: Mapping[str, Any], origin: str) -> None:
        """Fills keys that `table` lacks from `defaults`, also inside tables that both have."""
        for key, value in defaults.items():
            inner = f"{place}.{key}"
            if key not in table:
                table[key] = value
                self.record(inner, value, origin)
            elif isinstance(value, Mapping) and isinstance(table[key], dict):
                self.lay_under(inner, table[key], value, origin)

    def override(self, text: str) -> None:
        """Applies `key.path=value`; list items go by index or, for stages, by name. What is wrong goes to `errors`."""
        key, equals, written = text.partition("=")
        path = re.sub(r"\[(\w+)\]", r".\1", key.strip()).split(".")
        if not equals or not all(path):
            self.errors.add(
                where=f"override {text!r}",
                given=repr(text),
                expected="key.path=value, such as seed=1 or stages.grpo.rounds=20",
                fix="`lydian explain` lists the keys of a recipe.",
            )
            return
        node: Any = self.table
        place = ""
        for part in path[:-1]:
            step = self._step(node, part, place, text)
            if step is None:
                return
            node, place = step
        self._set(node, path[-1], place, parse_value(written), text)

    def _step(self, node: Any, part: str, place: str, text: str) -> tuple[Any, str] | None:
        """One part further along an override's key; tables that are absent are made."""
        if isinstance(node, list):
            index = _index_of(node, part)
            if index is None:
                names = [str(_stage_name(item)) for item in node]
                near = nearest(part, names)
                self.errors.add(
                    where=f"override {text!r}",
                    given=f"no {part!r} in {place}",
                    expected=f"one of {', '.join(names)}, or an index below {len(names)}",
                    fix=f"Did you mean {near}?" if near else "Correct the key.",
                )
                return None
            return node[index], f"{place}[{index}]"
        inner = f"{place}.{part}" if place else part
        if not isinstance(node.setdefault(part, {}), dict | list):
            self.errors.add(
                where=f"override {text!r}",
                given=f"{inner}, which is {node[part]!r}",
                expected="a table to set something in",
                fix=f"Write {inner}=… to replace it.",
            )
            return None
        return node[part], inner

    def _set(self, node: Any, key: str, place: str, value: Any, text: str) -> None:
        if isinstance(node, list):
            self.errors.add(
                where=f"override {text!r}",
                given=f"a whole entry of {place}",
                expected="one setting of it",
                fix=f"Write {place}.{key}.setting=value.",
            )
            return
        inner = f"{place}.{key}" if place else key
        if place == "data" and key != "root" and isinstance(value, str | list):
            # Another path leaves what is said of the rows as it is; a generator's settings go with the generator.
            known = {item.name for item in fields(DataSettings)} - {"generator", "mixture"}
            kept = node.get(key) or {}
            node[key] = {name: kept[name] for name in kept if name in known} | written_out(place, key, value)
            self.record(f"{inner}.path", node[key]["path"], "override")
            return
        node[key] = written_out(place, key, value)
        self.record(inner, node[key], "override")


def read_layers(name_or_path: str | Path, overrides: tuple[str, ...] | list[str] = ()) -> Layers:
    """A recipe's file with overrides put over it. Raises RecipeError if it cannot be found or parsed."""
    path = find_recipe(name_or_path)
    table = written_out_all(_parse(path))
    layers = Layers(table=table, errors=ErrorList(f"recipe {path.stem}"))
    for key, value in table.items():
        layers.record(key, value, f"file {path.name}")
    for text in overrides:
        layers.override(text)
    layers.table.setdefault("name", path.stem)
    return layers


def shipped_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe: a shipped one by name, or a path to a .toml or .json file. Raises RecipeError."""
    name = str(name_or_path)
    shipped = SHIPPED / f"{name}.toml"
    if "/" not in name and shipped.is_file():
        return shipped
    path = Path(name_or_path)
    if path.is_file() and path.suffix in (".toml", ".json"):
        return path
    known = shipped_names()
    near = nearest(name, known)
    raise RecipeError(
        where=f"recipe {name!r}",
        given="a file that is neither .toml nor .json" if path.is_file() else "no such recipe or file",
        expected=f"one of {', '.join(known)}, or the path of a .toml file",
        fix=f"Did you mean {near}?" if near else "Check the spelling or the path.",
    )


def parse_value(text: str) -> Any:
    """An override's value: TOML, else the text itself; a bare `none` unsets an optional setting.

    >>> [parse_value(text) for text in ("3", "[1, 2]", "true", "a/b.jsonl", "none", "'none'")]
    [3, [1, 2], True, 'a/b.jsonl', None, 'none']
    """
    text = text.strip()
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def written_out(place: str, key: str, value: Any) -> Any:
    """A short form in full: a data set given by its path, one path for a list, a verifier given by its name."""
    if key in NAMED and isinstance(value, str):
        return {"name": value}
    if place == "data" and key != "root":
        if isinstance(value, str | list):
            value = {"path": value}
        if isinstance(value, dict) and isinstance(value.get("path"), str):
            value = value | {"path": [value["path"]]}
    if place.startswith("data.") and key == "path" and isinstance(value, str):
        return [value]
    return value


def written_out_all(table: dict[str, Any]) -> dict[str, Any]:
    """A recipe's table with every short form in full; what has the wrong shape is left for the binding to refuse."""

    def all_of(place: str, inner: Any) -> Any:
        return (
            {key: written_out(place, key, value) for key, value in inner.items()} if isinstance(inner, dict) else inner
        )

    table = table | {place: all_of(place, table[place]) for place in ("data", "benchmark") if place in table}
    if isinstance(table.get("stages"), list):
        table["stages"] = [all_of("stages", stage) for stage in table["stages"]]
    return table


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise RecipeError(
            where=str(path),
            given=f"{type(error).__name__}: {error}",
            expected="a TOML file that can be read",
            fix="Correct the file at the place named.",
        ) from error
    if not isinstance(table, dict):
        raise RecipeError(
            where=str(path), given=f"a JSON {type(table).__name__}", expected="an object", fix="Restore the file."
        )
    return table


def _index_of(items: list[Any], part: str) -> int | None:
    if part.isdigit():
        return int(part) if int(part) < len(items) else None
    return next((index for index, item in enumerate(items) if _stage_name(item) == part), None)


def _stage_name(stage: Any) -> Any:
    return stage.get("name", stage.get("algorithm")) if isinstance(stage, dict) else None


def _is_inside(key: str, place: str) -> bool:
    return key == place or key.startswith((f"{place}.", f"{place}["))


def _leaves(place: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _leaves(f"{place}.{key}", item)]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(f"{place}[{index}]", item)]
    return [place]
