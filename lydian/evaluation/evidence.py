"""`evidence`: what a run claims and what stands behind it, as one JSON object. What was not measured says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lydian.errors import RunError

SCHEMA = "lydian.evidence/1"
NOT_MEASURED = "not measured"
_SKIPPED = ("lock", "evidence.json")


def evidence(folder: Path) -> dict[str, Any]:
    """The evidence of a run, finished or not; docs/evaluation.md has the schema.

    Every file of the run but its lock is digested. A fact that the run did not record is the text "not measured",
    never zero or left out (null within `hardware` is a recorded "none").

    Raises RunError for a folder that holds no run, or a damaged file of one.
    """
    run, recipe, summary = (_read(folder / f"{name}.json") for name in ("run", "recipe", "summary"))
    if not recipe and not run:
        raise RunError(
            where=str(folder),
            given="neither run.json nor recipe.json",
            expected="the folder of a run",
            fix="Pass the folder that `lydian run` printed.",
        )
    return {
        "schema": SCHEMA,
        "name": _fact(run, "name"),
        "environment": {"versions": _fact(run, "versions"), "hardware": _fact(run, "hardware")},
        "times": {key: _fact(run, key) for key in ("started", "finished")},
        "seeds": _seeds(recipe, run),
        "commands": {"run": _fact(run, "command"), "resume": ["lydian", "run", "--resume", str(folder)]},
        "recipe_digest": _fact(run, "recipe_digest"),
        "metrics": {
            "expected": recipe.get("expect") or NOT_MEASURED,
            "actual": [_stage(row) for row in summary.get("stages", [])] or NOT_MEASURED,
            "not_evaluated": _not_evaluated(recipe, summary),
            "wall_seconds": _fact(summary, "wall_seconds"),
            "peak_memory_bytes": _fact(summary, "peak_memory_bytes"),
        },
        "artifacts": list(_artifacts(folder)),
        "licences": _licences(run),
        "known_failures": _failures(folder, recipe, run, summary),
    }


def _stage(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("accuracy", "format", "outcomes", "mean_tokens", "versus_previous", "seconds")
    return {"stage": _fact(row, "stage")} | {key: _fact(row, key) for key in keys}


def _seeds(recipe: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The run's seed, and every seed of the recipe by its place."""
    return {"run": run.get("seed", recipe.get("seed", NOT_MEASURED)), "recipe": dict(_seeds_in(recipe, ""))}


def _seeds_in(value: object, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            at = f"{place}.{key}" if place else str(key)
            if key in ("seed", "share_seed"):
                yield at, item
            yield from _seeds_in(item, at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _seeds_in(item, f"{place}[{index}]")


def _not_evaluated(recipe: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    wanted = ["base", *(stage["name"] for stage in recipe.get("stages", []))] if recipe else []
    done = {row.get("stage") for row in summary.get("stages", [])}
    return [name for name in wanted if name not in done]


def _artifacts(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in _SKIPPED:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            yield {"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size, "sha256": digest}


def _licences(run: Mapping[str, Any]) -> dict[str, Any]:
    model = run.get("model") or {}
    return {
        "model": {"source": _fact(model, "source"), "digest": _fact(model, "digest"), "licence": _licence(model)},
        "data": [
            {key: _fact(item, key) for key in ("name", "path", "digest", "num")} | {"licence": _licence(item)}
            for item in run.get("data", [])
        ]
        or NOT_MEASURED,
    }


def _licence(facts: Mapping[str, Any]) -> str:
    """What the source states; a licence is not measured but stated, or not."""
    return str(facts.get("licence") or "not stated")


def _failures(folder: Path, recipe: Mapping[str, Any], run: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """What is known to be amiss, one sentence each; an empty list says that nothing was recorded, no more."""
    failures = []
    if not run.get("finished"):
        failures.append("the run has not finished")
    failures += [f"stage {name} was not evaluated" for name in _not_evaluated(recipe, summary)]
    for row in summary.get("stages", []):
        share = (row.get("outcomes") or {}).get("failed", 0)
        if share:
            failures.append(f"stage {row.get('stage')}: {share:.1%} of verdicts FAILED and are in no estimate")
    events = folder / "events.jsonl"
    if events.is_file():
        for line in events.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                failures.append(f"events.jsonl has a damaged line: {line[:60]!r}")
                continue
            if event.get("kind") in ("alarm", "failure", "warning", "error"):
                failures.append(f"{event.get('stage')}: {event.get('message')}")
    return failures


def _fact(table: Mapping[str, Any], key: str) -> Any:
    value = table.get(key)
    return NOT_MEASURED if value is None else value


def _read(path: Path) -> dict[str, Any]:
    """The object in the file, or an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        given = f"a JSON {type(value).__name__}"
    except (OSError, ValueError) as error:
        given = f"{type(error).__name__}: {error}"
    raise RunError(where=str(path), given=given, expected="what a run writes", fix="Restore the file.")
