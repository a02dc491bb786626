"""A run's folder: what is written when, so that a run killed at any moment goes on and nothing written is lost."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from lydian.data import atomic
from lydian.errors import RunError
from lydian.recipes.machine import hardware, versions

LOCK = "lock"
FULL = (errno.ENOSPC, errno.EDQUOT)


class RunDir:
    """The folder of one run, held by one process at a time; make it with `create` or `resume`, and `close` it.

    JSON files are replaced whole or not at all; lines are appended one write each; rollouts are never changed. Numbers
    that are not finite are written as null.

    >>> import tempfile
    >>> with RunDir.create(Path(tempfile.mkdtemp()), {"name": "demo", "stages": []}) as run:
    ...     run.append_event(stage="base", kind="note", message="hello")
    ...     sorted(path.name for path in run.path.iterdir())
    ['events.jsonl', 'lock', 'recipe.json']
    """

    def __init__(self, path: Path, recipe: Mapping[str, Any], lock: IO[str]) -> None:
        self.path = path
        self.stages = ["base", *(stage["name"] for stage in recipe["stages"])]
        self._lock = lock

    @classmethod
    def create(cls, path: Path, recipe: Mapping[str, Any]) -> RunDir:
        """A new run in an absent or empty folder; `recipe` is the resolved one (`Recipe.as_dict()`).

        Raises RunError if the folder holds anything, cannot be written, or another process holds it.
        """
        _guard(path, lambda: path.mkdir(parents=True, exist_ok=True))
        # A run killed while it was being created leaves its lock and a draft of its recipe: that is still nothing.
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in (LOCK, ".recipe.json.tmp"))
        if "recipe.json" in others:
            raise RunError(
                where=str(path),
                given="a folder that holds a run",
                expected="an absent or empty folder",
                fix=f"`lydian run --resume {path}` goes on with that run; choose another --out for a new one.",
            )
        if others:
            raise RunError(
                where=str(path),
                given=f"a folder that holds {', '.join(others[:3])}{' …' if len(others) > 3 else ''}",
                expected="an absent or empty folder",
                fix="Choose another --out: a run never writes among other files.",
            )
        run = cls(path, recipe, _lock(path))
        try:
            run.write_json("recipe.json", recipe)
        except RunError:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, path: Path, recipe: Mapping[str, Any]) -> RunDir:
        """A run begun earlier, to go on with.

        Raises RunError if there is none, if its recipe differs from `recipe` (naming what differs), or if another
        process holds it.
        """
        begun = read_json(path / "recipe.json")
        changed = differences(begun, recipe)
        if changed:
            raise RunError(
                where=str(path / "recipe.json"),
                given=f"a run of another recipe ({'; '.join(changed[:10])}{'; …' if len(changed) > 10 else ''})",
                expected="the recipe that the run was begun with",
                fix=f"Undo the changes, or run `lydian run --resume {path}` without a recipe; --out starts a new run.",
            )
        return cls(path, recipe, _lock(path))

    def close(self) -> None:
        """Lets go of the folder."""
        self._lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def numbered(self, stage: str) -> str:
        """The stage's folder name: 01_sft; the base model's is 00_base."""
        return f"{self.stages.index(stage):02d}_{stage}"

    def model_path(self, stage: str) -> Path:
        return self.path / "models" / self.numbered(stage)

    def evaluation_prefix(self, stage: str, side: str | None = None) -> Path:
        """What EvalReport.save and load take: the files' common beginning. A side benchmark has its own folder."""
        folder = self.path / "evaluations"
        return (folder if side is None else folder / "side" / side) / self.numbered(stage)

    def rollouts_path(self, stage: str, round: int) -> Path:
        return self.path / "rollouts" / self.numbered(stage) / f"round_{round:06d}.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_json(self, name: str, value: object) -> None:
        """Writes `value` to the file, which afterwards is the new one or, if anything stopped us, the old one."""
        text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(self.path / name, text)

    def append_metrics(
        self, *, stage: str, round: int, step: int, seconds: float, metrics: Mapping[str, float | None]
    ) -> None:
        """Appends the line of one optimiser step to metrics.jsonl."""
        row = {"stage": stage, "round": round, "step": step, "seconds": seconds, "metrics": dict(metrics)}
        _append_line(self.path / "metrics.jsonl", row)

    def read_metrics(self, stage: str) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are of the stage, in order."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [row for row in map(json.loads, lines) if row["stage"] == stage]

    def append_event(self, *, stage: str, kind: str, message: str) -> None:
        """Appends a line with the time (UTC) to events.jsonl."""
        row = {"time": now(), "stage": stage, "kind": kind, "message": message}
        _append_line(self.path / "events.jsonl", row)

    def trim_metrics(self, *, stage: str, step: int) -> int:
        """Moves what lies beyond the step of the stage, and a line cut short, to metrics.orphan.jsonl; says how many.

        A resumed run repeats the steps after its last checkpoint; their first lines would otherwise count twice.
        `stage` "base" with step 0 keeps nothing.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        last = (self.stages.index(stage), step)
        kept: list[str] = []
        orphans: list[str] = []
        for line in lines:
            (kept if self._is_within(line, last) else orphans).append(line)
        if orphans:
            # Orphans are stored before they leave: a kill between the two leaves them in both, never in neither.
            for line in orphans:
                _append(self.path / "metrics.orphan.jsonl", line if line.endswith("\n") else line + "\n")
            write_atomically(path, "".join(kept))
        return len(orphans)

    def _is_within(self, line: str, last: tuple[int, int]) -> bool:
        if not line.endswith("\n"):
            return False
        try:
            row = json.loads(line)
            return (self.stages.index(row["stage"]), row["step"]) <= last
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                where=f"{self.path / 'metrics.jsonl'}, line {line[:60]!r}",
                given=f"{type(error).__name__}: {error}",
                expected="the line of a step of one of the run's stages",
                fix="The file was edited: restore it, or remove that line.",
            ) from error

    def write_rollouts(self, *, stage: str, round: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Writes the samples of one round, one line each, whole or not at all; returns the file's path.

        A round that a resumed run repeats is written once: where it came out differently, the earlier file stays as
        `orphan_round_….jsonl`.
        """
        path = self.rollouts_path(stage, round)
        text = "".join(to_line(row) for row in rows)
        if path.exists():
            if path.read_text(encoding="utf-8") == text:
                return path
            path.replace(path.with_name(f"orphan_{path.name}"))
        write_atomically(path, text)
        return path

    def write_manifest(
        self,
        *,
        name: str,
        seed: int,
        command: Seq[str],
        recipe_digest: str,
        model: Mapping[str, Any],
        data: Seq[Mapping[str, Any]],
    ) -> None:
        """Writes run.json: what was run on what, with versions and hardware; a resumed run keeps when it started.

        model  {"source", "digest", "licence"}
        data   for each set {"name", "path", "digest", "num", "licence"}
        """
        path = self.path / "run.json"
        started = read_json(path)["started"] if path.exists() else now()
        facts = {"name": name, "seed": seed, "command": list(command), "started": started, "finished": None}
        facts |= {"versions": versions(), "hardware": hardware(), "model": model, "data": list(data)}
        self.write_json("run.json", facts | {"recipe_digest": recipe_digest})

    def mark_finished(self) -> None:
        """Notes in run.json when the run ended."""
        self.write_json("run.json", read_json(self.path / "run.json") | {"finished": now()})


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run. Raises RunError if it is absent or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            where=str(path),
            given=f"{type(error).__name__}: {error}",
            expected=f"the {path.name} that a run writes",
            fix="Check the path; if the file is damaged, restore it or start a new run.",
        ) from error
    if not isinstance(value, dict):
        raise RunError(
            where=str(path), given=f"a JSON {type(value).__name__}", expected="an object", fix="Restore the file."
        )
    return value


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two resolved recipes, as `key: before → now`; texts and the data's folder do not count.

    >>> differences({"seed": 0, "expect": "a"}, {"seed": 1, "expect": "b"})
    ['seed: 0 → 1']
    """
    mine, theirs = dict(_flat(finite(before), "")), dict(_flat(finite(after), ""))
    for key in ("description", "expect", "data.root"):
        mine.pop(key, None)
        theirs.pop(key, None)
    keys = [*mine, *(key for key in theirs if key not in mine)]
    return [
        f"{key}: {mine.get(key, 'absent')} → {theirs.get(key, 'absent')}"
        for key in keys
        if mine.get(key, "absent") != theirs.get(key, "absent")
    ]


def finite(value: Any) -> Any:
    """`value` for JSON: tuples as lists, and None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def to_line(row: Mapping[str, Any]) -> str:
    """One line of JSON, its newline included."""
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False) + "\n"


def now() -> str:
    """The time in UTC to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_atomically(path: Path, text: str) -> None:
    """The file is replaced whole, or stays as it was. Raises RunError if the disk is full or cannot be written."""
    _guard(path, lambda: atomic.write_atomically(path, text))


def _append_line(path: Path, row: Mapping[str, Any]) -> None:
    _append(path, to_line(row))


def _append(path: Path, line: str) -> None:
    """One write; a line that did not fit on the disk is cut off again, so that the file stays readable."""

    def write() -> None:
        content = line.encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            try:
                num_written = os.write(descriptor, content)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
            if num_written < len(content):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)

    _guard(path, write)


def _guard(path: Path, write: Callable[[], None]) -> None:
    """Runs `write`; an error of the file system becomes a RunError that says what is safe."""
    try:
        write()
    except OSError as error:
        is_full = error.errno in FULL
        raise RunError(
            where=str(path),
            given="a full disk" if is_full else f"{type(error).__name__}: {error}",
            expected=f"room to write ({_free(path)} free)" if is_full else "a place that can be written",
            fix="Nothing that was written before is lost, and the last checkpoint is whole. "
            + ("Free some space" if is_full else "Repair the cause")
            + ", then go on with `lydian run --resume`.",
        ) from error


def _free(path: Path) -> str:
    existing = next((parent for parent in path.parents if parent.exists()), Path("/"))
    return f"{shutil.disk_usage(existing).free / 2**20:.0f} MiB"


def _lock(path: Path) -> IO[str]:
    """Takes the folder for this process. The system lets go of it when the process ends, however it ends."""
    file = (path / LOCK).open("a+", encoding="ascii")
    try:
        # A record lock: unlike flock's it is not inherited by worker processes, which may outlive a killed run.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise RunError(
            where=str(path),
            given=f"a run that another process writes (process {holder})",
            expected="a run that nobody else writes",
            fix="Wait for that process or end it; or choose another --out.",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _flat(value: Any, place: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{place}[{index}]")
    else:
        yield place, value
