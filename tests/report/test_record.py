"""Reading a run directory: exact where it is there, absent where it is not, whatever state a run was left in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lydian.errors import RunError
from lydian.report import record
from lydian.report.record import read_run
from tests.report.fake_run import write_fake_run


def write_lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def step(stage: str, number: int, **metrics: float | None) -> dict[str, Any]:
    return {"stage": stage, "round": 0, "step": number, "seconds": 1.0, "metrics": metrics}


def test_everything_recorded_is_read(tmp_path: Path) -> None:
    """Sixty steps as 20 + 16 + 24, stages in the order of their numbers, nothing missing or broken."""
    run = read_run(write_fake_run(tmp_path))
    assert run["stages"] == ["base", "sft", "expert_iteration", "grpo"]
    assert {stage: len(columns["step"]) for stage, columns in run["metrics"].items()} == {
        "base": 0,
        "sft": 20,
        "expert_iteration": 16,
        "grpo": 24,
    }
    assert run["missing"] == [] and run["broken"] == {}
    assert run["summary"] == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))


def test_a_line_cut_short_is_counted_and_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [step("sft", 1, loss=1.5), step("sft", 2, loss=1.25)])
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"stage": "sft", "round": 0, "st')
    (tmp_path / "events.jsonl").write_bytes(b'{"kind": "note", "message": "\xe2\x82\n[1, 2]\n\n')
    run = read_run(tmp_path)
    assert run["metrics"]["sft"]["series"] == {"loss": [1.5, 1.25]}
    assert run["broken"] == {"metrics.jsonl": 1, "events.jsonl": 2}
    assert run["events"] == []


def test_absent_files_are_named_and_absent_values_stay_none(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [step("sft", 1, loss=None), step("sft", 2, loss=0.0, reward=1.0)])
    run = read_run(tmp_path)
    assert run["metrics"]["sft"]["series"] == {"loss": [None, 0.0], "reward": [None, 1.0]}
    assert run["run"] is None and run["summary"] is None
    names = ["run.json", "recipe.json", "summary.json", "events.jsonl", "rollouts/", "evaluations/"]
    assert run["missing"] == names


def test_numbers_a_browser_cannot_hold(tmp_path: Path) -> None:
    """2^53 is exact in a double, 2^53 + 1 is not; 1e999 parses to infinity."""
    text = '{"stage": "a", "step": 1, "metrics": {"x": NaN, "y": -Infinity, "z": 1e999, "w": 0.1}}\n'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "run.json").write_text(f'{{"seed": {2**53 + 1}, "other": {2**53}}}', encoding="utf-8")
    run = read_run(tmp_path)
    assert run["metrics"]["a"]["series"] == {"w": [0.1], "x": [None], "y": [None], "z": [None]}
    assert run["run"] == {"seed": "9007199254740993", "other": 9007199254740992}


def test_a_step_written_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    lines = [step("grpo", 1, loss=1.0), step("grpo", 2, loss=2.0), step("grpo", 2, loss=2.5), step("grpo", 3, loss=3.0)]
    write_lines(tmp_path / "metrics.jsonl", lines)
    columns = read_run(tmp_path)["metrics"]["grpo"]
    assert columns["step"] == [1, 2, 3] and columns["series"]["loss"] == [1.0, 2.5, 3.0]


def write_rounds(root: Path, stage: str, num_rounds: int, num_samples: int, num_tokens: int = 3) -> None:
    (root / "run.json").write_text("{}", encoding="utf-8")
    for number in range(num_rounds):
        rows = [{"problem_id": f"p{k}", "ids": [1] * num_tokens} for k in range(num_samples)]
        write_lines(root / f"rollouts/{stage}/round_{number:06d}.jsonl", rows)


def test_samples_come_from_first_middle_and_last_round(tmp_path: Path) -> None:
    """Seven rounds: 0, 3, 6. `01_a` and `02_more_a` are different stages. Two rounds: 0 and 1. Orphans do not count."""
    write_rounds(tmp_path, "01_a", 7, 2)
    write_rounds(tmp_path, "02_more_a", 2, 1)
    write_lines(tmp_path / "rollouts/01_a/orphan_round_000000.jsonl", [{"problem_id": "orphan"}])
    samples = read_run(tmp_path)["samples"]
    assert [(row["stage"], row["round"]) for row in samples["rows"]] == [
        ("a", 0),
        ("a", 0),
        ("a", 3),
        ("a", 3),
        ("a", 6),
        ("a", 6),
        ("more_a", 0),
        ("more_a", 1),
    ]
    assert (samples["num_recorded"], samples["rounds_shown"], samples["rounds_recorded"]) == (8, 5, 9)


def test_samples_are_capped_evenly_and_the_rest_counted(tmp_path: Path) -> None:
    """Three rounds share 600: 200 each of 250."""
    write_rounds(tmp_path, "01_a", 3, 250)
    samples = read_run(tmp_path)["samples"]
    rounds = [row["round"] for row in samples["rows"]]
    assert [rounds.count(number) for number in range(3)] == [200, 200, 200]
    assert samples["num_recorded"] == 750


def test_long_samples_are_capped_by_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget 100 tokens over two rounds is 50 each: two samples of 20 tokens fit, a third does not."""
    monkeypatch.setattr(record, "MAX_SAMPLE_TOKENS", 100)
    write_rounds(tmp_path, "01_a", 2, 5, num_tokens=20)
    rows = read_run(tmp_path)["samples"]["rows"]
    assert [row["round"] for row in rows].count(0) == 2


def test_flips_are_counted_as_the_comparison_counts_them(tmp_path: Path) -> None:
    """p0 wrong → correct, p1 correct → wrong, p2 unchanged; p3 FAILED before, so neither; p4 from 1/2 to 2/2."""

    def rows(*outcomes: tuple[str, str]) -> list[dict[str, str]]:
        return [{"problem_id": problem, "outcome": outcome, "text": outcome} for problem, outcome in outcomes]

    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    before = rows(
        ("p0", "wrong"), ("p1", "correct"), ("p2", "correct"), ("p3", "failed"), ("p4", "wrong"), ("p4", "correct")
    )
    after = rows(
        ("p0", "correct"),
        ("p1", "unparsed"),
        ("p2", "correct"),
        ("p3", "correct"),
        ("p4", "correct"),
        ("p4", "correct"),
    )
    write_lines(tmp_path / "evaluations/00_base.records.jsonl", before)
    write_lines(tmp_path / "evaluations/01_sft.records.jsonl", after)
    (flip,) = read_run(tmp_path)["flips"]
    assert (flip["before"], flip["after"], flip["num_paired"]) == ("base", "sft", 4)
    assert (flip["num_gained"], flip["num_lost"]) == (2, 1)
    assert [[old["text"], new["text"]] for old, new in flip["gained"]] == [["wrong", "correct"], ["wrong", "correct"]]
    assert [[old["text"], new["text"]] for old, new in flip["lost"]] == [["correct", "unparsed"]]


def test_flips_are_against_the_stage_it_started_from(tmp_path: Path) -> None:
    """kto started from sft, not from dpo before it; without a recipe the one before is all that is known."""
    for number, (stage, outcome) in enumerate(
        (("base", "wrong"), ("sft", "correct"), ("dpo", "wrong"), ("kto", "correct"))
    ):
        write_lines(
            tmp_path / f"evaluations/{number:02d}_{stage}.records.jsonl", [{"problem_id": "p0", "outcome": outcome}]
        )
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    assert [flip["before"] for flip in read_run(tmp_path)["flips"]] == ["base", "sft", "dpo"]
    stages = [{"name": name, "start": start} for name, start in (("sft", "base"), ("dpo", "sft"), ("kto", "sft"))]
    (tmp_path / "recipe.json").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    flips = read_run(tmp_path)["flips"]
    assert [flip["before"] for flip in flips] == ["base", "sft", "sft"]
    assert [flip["num_gained"] for flip in flips] == [1, 0, 0]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a run directory"):
        read_run(tmp_path)
