"""Evidence says what is there, and says of the rest that it was not measured."""

from __future__ import annotations

import hashlib
import json

import pytest

from lydian.errors import RunError
from lydian.evaluation.evidence import evidence

RECIPE = {"seed": 3, "expect": "about half", "stages": [{"name": "sft", "sampling": {"seed": 4}}]}
RUN = {"name": "demo", "seed": 3, "command": ["lydian", "run", "demo"], "started": "2026-01-01", "finished": None,
       "versions": {"torch": "2"}, "hardware": {"cores": 2}, "recipe_digest": "d",
       "model": {"source": "tiny", "digest": "m", "licence": None},
       "data": [{"name": "t", "path": "p", "digest": "x", "num": 4, "licence": "MIT"}]}  # fmt: skip


def write(folder, **files):
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def test_an_unfinished_run(tmp_path) -> None:
    summary = {"stages": [{"stage": "base", "accuracy": {"value": 0.5}, "outcomes": {"failed": 0.1}}]}
    write(tmp_path, recipe=RECIPE, run=RUN, summary=summary)
    found = evidence(tmp_path)
    (stage,) = found["metrics"]["actual"]
    assert stage["accuracy"] == {"value": 0.5} and stage["format"] == "not measured"
    assert found["metrics"]["expected"] == "about half" and found["metrics"]["not_evaluated"] == ["sft"]
    assert found["seeds"] == {"run": 3, "recipe": {"seed": 3, "stages[0].sampling.seed": 4}}
    assert found["licences"]["model"]["licence"] == "not stated" and found["licences"]["data"][0]["licence"] == "MIT"
    assert found["known_failures"] == [
        "the run has not finished",
        "stage sft was not evaluated",
        "stage base: 10.0% of verdicts FAILED and are in no estimate",
    ]
    digest = hashlib.sha256((tmp_path / "run.json").read_bytes()).hexdigest()
    assert {"path": "run.json", "bytes": (tmp_path / "run.json").stat().st_size, "sha256": digest} in found["artifacts"]


def test_nothing_measured_is_said(tmp_path) -> None:
    write(tmp_path, recipe={"seed": 0, "stages": []})
    found = evidence(tmp_path)
    assert found["metrics"]["actual"] == found["commands"]["run"] == "not measured"
    assert "null" not in json.dumps(found)


def test_no_run_and_a_damaged_one(tmp_path) -> None:
    with pytest.raises(RunError, match="run"):
        evidence(tmp_path)
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="Restore"):
        evidence(tmp_path)
