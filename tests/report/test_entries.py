"""Names of evaluations: what they mean, and what is said of one that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lydian.errors import DataError
from lydian.report.entries import load_evaluation, table_entries
from tests.evaluation.conftest import make_report  # noqa: F401  a fixture


@pytest.fixture
def run(make_report: Any, tmp_path: Path) -> Path:  # noqa: F811
    """A run of two stages after the base, the last not evaluated."""
    make_report("wc").save(tmp_path / "evaluations" / "00_base")
    make_report("cc").save(tmp_path / "evaluations" / "01_sft")
    (tmp_path / "recipe.json").write_text(json.dumps({"stages": [{"name": "sft"}, {"name": "grpo"}]}))
    (tmp_path / "run.json").write_text(json.dumps({"command": ["lydian", "run", "x"]}))
    return tmp_path


def test_a_run_gives_every_stage_of_its_recipe(run: Path) -> None:
    entries = table_entries([str(run), f"{run}:sft"])
    assert [entry.label for entry in entries] == [f"{run}:{name}" for name in ("base", "sft", "grpo", "sft")]
    assert [entry.report is None for entry in entries] == [False, False, True, False]
    assert entries[2].command == "lydian run x" and entries[3].command is None


def test_a_damaged_evaluation_raises_or_is_noted(run: Path) -> None:
    (run / "evaluations" / "01_sft.records.jsonl").write_text("{}\n")
    (run / "recipe.json").write_text("[")
    with pytest.raises(DataError):
        load_evaluation(f"{run}:sft")
    faults: list[str] = []
    entries = table_entries([str(run)], faults)
    assert [entry.report is None for entry in entries] == [False, True]
    assert len(faults) == 2 and "recipe.json" in faults[0] and "01_sft.records.jsonl" in faults[1]
