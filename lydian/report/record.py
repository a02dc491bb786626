"""Reads a run directory, finished or not, for showing: what is there exactly, what is absent as absent, not zero."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lydian.data.verdict import Outcome
from lydian.errors import RunError

MAX_SAMPLES = 600
MAX_SAMPLE_TOKENS = 300_000
MAX_FLIPS = 15
_EXACT_IN_A_DOUBLE = 2**53
_FOLDERS = ("rollouts", "evaluations")
_ROLLOUTS = re.compile(r"(\d+)_(.+)")
_RECORDS = re.compile(r"(\d+)_(.+)\.records\.jsonl")
"""Verdicts; what they are on lies beside them in .generations.jsonl (in older runs, in the same lines)."""

Row = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads the files of one run directory and remembers what was absent or broken.

    root     the run directory
    missing  files that are not there
    broken   file → number of lines that are not JSON objects (of a killed run at most the last)
    """

    root: Path
    missing: list[str] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)

    def read_json(self, name: str) -> Row | None:
        """The object in a JSON file, or None where the file is absent or not a JSON object."""
        path = self.root / name
        if not path.exists():
            self.missing.append(name)
            return None
        value = _parse(path.read_bytes())
        if value is None:
            self.broken[name] = 1
        return value

    def read_lines(self, name: str) -> Iterator[Row]:
        """The objects in a JSONL file, one at a time; broken lines are counted and left out."""
        path = self.root / name
        if not path.exists():
            self.missing.append(name)
            return
        with path.open("rb") as lines:
            for line in lines:
                row = _parse(line)
                if row is not None:
                    yield row
                elif line.strip():
                    self.broken[name] = self.broken.get(name, 0) + 1


def read_run(run_dir: Path) -> Row:
    """Everything the report page shows, as one object that JSON can hold (non-finite numbers become None).

    Raises RunError if `run_dir` holds neither a manifest nor metrics nor a summary.
    """
    reader = Reader(root=run_dir)
    run, recipe, summary = (reader.read_json(f"{name}.json") for name in ("run", "recipe", "summary"))
    metrics = list(reader.read_lines("metrics.jsonl"))
    events = list(reader.read_lines("events.jsonl"))
    if run is None and summary is None and not metrics:
        raise RunError(
            where=str(run_dir),
            given="no run.json, summary.json or metrics.jsonl",
            expected="a run directory",
            fix="Pass the directory that `lydian run` printed.",
        )
    stages = _stage_names(run_dir, summary, metrics)
    samples = _read_samples(reader, stages)
    return {
        "run": run,
        "recipe": recipe,
        "summary": summary,
        "stages": stages,
        "metrics": {stage: _columns(metrics, stage) for stage in stages},
        "samples": samples,
        "flips": _read_flips(reader, {row.get("name"): row.get("start") for row in (recipe or {}).get("stages", [])}),
        "events": events,
        "missing": reader.missing + [f"{name}/" for name in _FOLDERS if not (run_dir / name).is_dir()],
        "broken": reader.broken,
    }


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[str, Path]:
    """Stage → path of what is named `NN_<stage>` in a folder, by NN; empty where the folder is absent."""
    found = [(match, path) for path in folder.glob("*") if (match := pattern.fullmatch(path.name))]
    return {match[2]: path for match, path in sorted(found, key=lambda item: int(item[0][1]))}


def _records(root: Path) -> dict[str, Path]:
    return _numbered(root / "evaluations", _RECORDS)


def _stage_names(run_dir: Path, summary: Row | None, metrics: list[Row]) -> list[str]:
    """Stages in order: by number where files have one; what only metrics or the summary name comes after."""
    paths = {**_records(run_dir), **_numbered(run_dir / "rollouts", _ROLLOUTS)}
    names = sorted(paths, key=lambda name: int(paths[name].name.split("_")[0]))
    for row in [*(summary or {}).get("stages", []), *metrics]:
        if row.get("stage") not in (*names, None):
            names.append(row["stage"])
    return names


def _columns(metrics: list[Row], stage: str) -> Row:
    """A stage's metrics as columns: `step`, `round`, `seconds`, and one list a metric; None where a line lacks it.

    Where a resumed run wrote a step again, the later line counts.
    """
    rows = list({row.get("step"): row for row in metrics if row.get("stage") == stage}.values())
    names = sorted({name for row in rows for name in row.get("metrics", {})})
    return {
        **{name: [row.get(name) for row in rows] for name in ("step", "round", "seconds")},
        "series": {name: [row.get("metrics", {}).get(name) for row in rows] for name in names},
    }


def _read_samples(reader: Reader, stages: list[str]) -> Row:
    """Samples of the first, the middle and the last round of each stage, at most MAX_SAMPLES in all, evenly."""
    folders = _numbered(reader.root / "rollouts", _ROLLOUTS)
    rounds = {stage: sorted(folders[stage].glob("round_*.jsonl")) for stage in stages if stage in folders}
    chosen = [
        (stage, paths[index])
        for stage, paths in rounds.items()
        for index in sorted({0, (len(paths) - 1) // 2, len(paths) - 1} if paths else set())
    ]
    shown: list[Row] = []
    num_recorded = 0
    for position, (stage, path) in enumerate(chosen):
        left = len(chosen) - position
        quota = (MAX_SAMPLES - len(shown)) // left
        token_quota = (MAX_SAMPLE_TOKENS - sum(len(row.get("ids", ())) for row in shown)) // left
        number = int(path.stem.removeprefix("round_"))
        for row in reader.read_lines(path.relative_to(reader.root).as_posix()):
            num_recorded += 1
            token_quota -= len(row.get("ids", ()))
            if quota > 0 and token_quota >= 0:
                quota -= 1
                shown.append({"stage": stage, "round": number, **row})
    return {
        "rows": shown,
        "num_recorded": num_recorded,
        "rounds_shown": len(chosen),
        "rounds_recorded": sum(map(len, rounds.values())),
    }


def _read_flips(reader: Reader, starts: Mapping[str, str]) -> list[Row]:
    """For each evaluated stage and where it started: problems gained and lost, MAX_FLIPS of each with their outputs.

    starts  stage → the stage that it started from; where that is not known, the one evaluated before it
    """
    flips = []
    judged: dict[str, dict[str, list[Row]]] = {}
    for stage, path in _records(reader.root).items():
        start = starts.get(stage) or next(reversed(judged), None)
        judged[stage] = _judged(reader, path)
        if start in judged:
            flips.append({"before": start, "after": stage, **_compare(judged[start], judged[stage])})
    return flips


def _judged(reader: Reader, path: Path) -> dict[str, list[Row]]:
    """The records of an evaluation with their texts, by problem; those whose verifier failed are left out."""
    texts = path.with_name(path.name.replace(".records.", ".generations."))
    generated = {
        (row.get("problem_id"), row.get("sample")): row
        for row in (reader.read_lines(texts.relative_to(reader.root).as_posix()) if texts.exists() else ())
    }
    judged: dict[str, list[Row]] = {}
    for verdict in reader.read_lines(path.relative_to(reader.root).as_posix()):
        if verdict.get("outcome") != Outcome.FAILED:
            record = verdict | generated.get((verdict.get("problem_id"), verdict.get("sample")), {})
            judged.setdefault(str(record.get("problem_id")), []).append(record)
    return judged


def _compare(before: dict[str, list[Row]], after: dict[str, list[Row]]) -> Row:
    """Counted as lydian.evaluation.compare does: gained where a larger share of the judged samples is correct."""
    changes = [(_share_correct(after[key]) - _share_correct(before[key]), key) for key in before if key in after]
    gained = [key for change, key in changes if change > 0]
    lost = [key for change, key in changes if change < 0]
    return {
        "num_paired": len(changes),
        "num_gained": len(gained),
        "num_lost": len(lost),
        "gained": [[_first(before[key], False), _first(after[key], True)] for key in gained[:MAX_FLIPS]],
        "lost": [[_first(before[key], True), _first(after[key], False)] for key in lost[:MAX_FLIPS]],
    }


def _share_correct(records: list[Row]) -> float:
    return [record.get("outcome") for record in records].count(Outcome.CORRECT) / len(records)


def _first(records: list[Row], is_correct: bool) -> Row:
    return next(record for record in records if (record.get("outcome") == Outcome.CORRECT) == is_correct)


def _parse(raw: bytes) -> Row | None:
    try:
        value = json.loads(raw.decode("utf-8", errors="strict"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return None
    return _showable(value) if isinstance(value, dict) else None


def _showable(value: Any) -> Any:
    """The value as JSON and a browser hold it: NaN and infinities as None, integers beyond 2⁵³ as text."""
    if isinstance(value, dict):
        return {key: _showable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_showable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > _EXACT_IN_A_DOUBLE:
        return str(value)
    return value
