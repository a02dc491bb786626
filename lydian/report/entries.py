"""Which evaluations a name means: RUN (its last stage; in a table every stage), RUN:STAGE, or a report's own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lydian.errors import InputError, LydianError

if TYPE_CHECKING:
    from lydian.evaluation.records import EvalReport

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One evaluation of a table.

    label    how it was named: RUN:STAGE, or a file
    command  what made it; None if that was not recorded
    report   what was measured; None if nothing was
    """

    label: str
    command: str | None
    report: EvalReport | None


def find_evaluation(name: str) -> Path:
    """The common beginning of an evaluation's files: of RUN (its last stage), RUN:STAGE, or a file's own name.

    Raises InputError for a run without that evaluation, naming those that it has.
    """
    path = Path(name)
    folder, _, stage = name.rpartition(":")
    if folder and Path(folder).is_dir() and not path.exists():
        path = Path(folder)
    else:
        stage = ""
    if not path.is_dir():
        return path.with_name(re.sub(r"(\.records\.jsonl|\.json)$", "", path.name))
    stages = {prefix.name[3:]: prefix for prefix in stage_prefixes(path)}
    if not stages or (stage and stage not in stages):
        raise InputError(
            where=name,
            given=f"a run without an evaluation{f' of {stage!r}' if stage else ''}",
            expected=f"one of the stages {', '.join(stages)}" if stages else "a run with evaluations",
            fix="Name a stage as RUN:STAGE.",
        )
    return stages[stage] if stage else list(stages.values())[-1]


def stage_prefixes(folder: Path) -> list[Path]:
    """The finished evaluations of a run's stages, in order; a partial one has no head and is left out."""
    return _prefixes(folder / "evaluations")


def load_evaluation(name: str) -> EvalReport:
    """The report that a name means. Raises InputError and DataError as `find_evaluation` and `EvalReport.load` do."""
    from lydian.evaluation.records import EvalReport

    return EvalReport.load(find_evaluation(name))


def table_entries(names: Sequence[str], faults: list[str] | None = None) -> list[Entry]:
    """The evaluations named: of a RUN every stage of its recipe on every benchmark, also one that was not evaluated.

    faults  where to note an evaluation that cannot be read, whose row then has nothing measured; None: it raises
    """
    entries = []
    for name in names:
        if not Path(name).is_dir():
            entries.append(Entry(label=name, command=None, report=_tolerant(partial(load_evaluation, name), faults)))
            continue
        command, planned = _plan(Path(name), faults)
        for folder in (Path(name) / "evaluations", *sorted((Path(name) / "evaluations" / "side").glob("*"))):
            done = {prefix.name[3:]: prefix for prefix in _prefixes(folder)}
            for stage in dict.fromkeys(["base", *planned, *done]):
                read = partial(load_evaluation, str(done.get(stage)))
                report = _tolerant(read, faults) if stage in done else None
                label = f"{name}:{stage}" if folder.name == "evaluations" else f"{name}:{stage} on {folder.name}"
                entries.append(Entry(label=label, command=command, report=report))
    return entries


def _prefixes(folder: Path) -> list[Path]:
    return sorted(path.with_suffix("") for path in folder.glob("[0-9][0-9]_*.json"))


def _plan(folder: Path, faults: list[str] | None) -> tuple[str | None, list[str]]:
    """A run's command, and the names of its recipe's stages; a run that was killed early may lack either."""
    run, recipe = (_object(folder / name, faults) for name in ("run.json", "recipe.json"))
    return " ".join(run.get("command") or ()) or None, [stage["name"] for stage in recipe.get("stages", ())]


def _object(path: Path, faults: list[str] | None) -> dict[str, Any]:
    from lydian.recipes.run_dir import read_json

    return _tolerant(lambda: read_json(path), faults) or {} if path.is_file() else {}


def _tolerant(read: Callable[[], T], faults: list[str] | None) -> T | None:
    """What `read` returns; None, and a note, where it cannot and there is a place for notes."""
    try:
        return read()
    except LydianError as error:
        if faults is None:
            raise
        faults.append(f"{error.where}: {error.given}")
        return None
