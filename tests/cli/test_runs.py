"""run, eval, check, compare and report around a library that is stubbed: what reaches it and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import InputError
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec
from lydian.recipes import run as library
from lydian.recipes.run_dir import RunDir
from lydian.report.entries import find_evaluation

TEXT = """
model = {source = "tiny"}
template = {kind = "plain"}
data.test = {generator = "arithmetic", num = 4, split = "heldout"}
benchmark = {data = "test", verifier = {name = "numeric"}}
stages = [{algorithm = "grpo", data = "test"}]
expect = "half of them"
"""

SUMMARY: dict[str, Any] = {
    "num_problems": 4,
    "stages": [{
        "stage": "base", "accuracy": {"value": 0.5, "low": 0.15, "high": 0.85, "num": 4}, "format": None,
        "outcomes": {"correct": 0.5, "wrong": 0.5}, "mean_tokens": 3.0, "versus_previous": None, "seconds": 1.0,
    }],
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.toml").write_text(TEXT, encoding="utf-8")
    return "demo.toml"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `run_recipe` was called with; like it, the stub begins a folder."""
    seen: list[dict[str, Any]] = []

    def run_recipe(recipe: Any, out: Path, *, resume: bool, console: Any) -> dict[str, Any]:
        seen.append({"recipe": recipe, "out": out, "resume": resume})
        (RunDir.resume if resume else RunDir.create)(out, recipe.as_dict()).close()
        return SUMMARY

    monkeypatch.setattr(library, "run_recipe", run_recipe)
    monkeypatch.setattr("lydian.report.page.write_report", lambda folder, out=None: folder / "report.html")
    return seen


def lydian(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_run_prints_the_table_and_where_the_report_is(recipe: str, calls: list[dict[str, Any]]) -> None:
    result = lydian("run", recipe, "seed=3", "--out", "here")
    assert result.exit_code == 0, result.output
    assert calls[0]["out"] == Path("here") and calls[0]["resume"] is False and calls[0]["recipe"].seed == 3
    assert "accuracy (4 held-out)" in result.output and "50.0 %" in result.output
    assert "expected: half of them" in result.output and "report: here/report.html" in result.output


def test_run_takes_a_free_folder(recipe: str, calls: list[dict[str, Any]]) -> None:
    for _ in range(3):
        assert lydian("run", recipe).exit_code == 0
    assert [call["out"] for call in calls] == [Path("runs/demo"), Path("runs/demo-2"), Path("runs/demo-3")]


def test_resume_needs_no_recipe_and_refuses_another(recipe: str, calls: list[dict[str, Any]]) -> None:
    assert lydian("run", recipe, "seed=3", "--out", "here").exit_code == 0
    result = lydian("run", "--resume", "here")
    assert result.exit_code == 0, result.output
    assert calls[1]["resume"] is True and calls[1]["recipe"] == calls[0]["recipe"]
    changed = lydian("run", recipe, "seed=4", "--resume", "here")
    assert changed.exit_code == 1 and "seed: 3 → 4" in changed.stderr
    assert lydian("run", recipe, "--out", "here").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ([], "neither a recipe nor --resume"),
        (["--resume", "nowhere"], "a folder without recipe.json"),
        (["demo.toml", "--resume", "x", "--out", "y"], "both --out and --resume"),
        (["demo.toml", "sede=1"], "sede"),
        (["dmo"], "recipe 'dmo'"),
    ],
)
def test_run_refuses_wrong_usage(recipe: str, arguments: list[str], place: str) -> None:
    result = lydian("run", *arguments)
    assert result.exit_code == 2 and place in result.stderr and result.stderr.startswith("where     ")


def test_interrupted_runs_say_how_to_go_on(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(recipe: Any, out: Path, *, resume: bool, console: Any) -> None:
        RunDir.create(out, recipe.as_dict()).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "run_recipe", interrupt)
    result = lydian("run", recipe, "--out", "here")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; `lydian run --resume here` goes on\n"


def test_check_prints_all_problems(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lydian.recipes.check.check_recipe", lambda recipe, console: ["a: bad", "b: worse"])
    result = lydian("check", recipe)
    assert result.exit_code == 1 and result.stderr.splitlines() == ["a: bad", "b: worse"]
    monkeypatch.setattr("lydian.recipes.check.check_recipe", lambda recipe, console: [])
    assert lydian("check", recipe).exit_code == 0
    unbound = lydian("check", recipe, "sede=1", "stages.grpo.rounds=0")
    assert unbound.exit_code == 2 and "sede" in unbound.stderr and "stages[0].rounds" in unbound.stderr


def evaluation(prefix: Path, correct: str, *, verifier: str = "numeric:1") -> EvalReport:
    """A saved report of one sample for each character of `correct`: 1 right, 0 wrong."""
    spec = EvalSpec(
        problems="p", num_problems=len(correct), template="t", stop_tokens=(0,), sampling={"temperature": 0.0},
        num_samples=1, verifier=verifier,
    )  # fmt: skip
    records = tuple(
        EvalRecord(
            problem_id=f"p{index}", sample=0, text="4", extracted="4", score=float(digit), num_tokens=2,
            outcome=Outcome.CORRECT if digit == "1" else Outcome.WRONG, finish=Finish.STOP,
            metadata={"level": index % 2},
        )
        for index, digit in enumerate(correct)
    )  # fmt: skip
    report = EvalReport(
        spec=spec, benchmark="b", name=prefix.name, records=records, weights_version=0, weights_digest="d"
    )
    report.save(prefix)
    return report


def test_compare_pairs_two_evaluations(tmp_path: Path) -> None:
    """Of four problems a has one right, b three, and b loses none: +50 points."""
    evaluation(tmp_path / "a", "1000")
    evaluation(tmp_path / "b", "1110")
    result = lydian("compare", str(tmp_path / "a.json"), str(tmp_path / "b.records.jsonl"), "--strata", "level")
    assert result.exit_code == 0, result.output
    assert "+50.0" in result.output and "McNemar" in result.output and "level 1" in result.output
    table = lydian("compare", str(tmp_path / "a.json"), "--strata", "level")
    assert table.exit_code == 2 and "--strata" in table.stderr


def test_compare_refuses_unlike_specs(tmp_path: Path) -> None:
    evaluation(tmp_path / "a", "1000")
    evaluation(tmp_path / "b", "1110", verifier="numeric:2")
    result = lydian("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert result.exit_code == 2 and "verifier" in result.stderr and "numeric:2" in result.stderr


def test_evaluations_are_found_by_run_and_stage(tmp_path: Path) -> None:
    folder = tmp_path / "qwen2.5" / "evaluations"
    for name in ("00_base", "01_sft", "02_grpo"):
        evaluation(folder / name, "10")
    (folder / "03_dpo.partial.jsonl").touch()
    run = str(tmp_path / "qwen2.5")
    assert find_evaluation(run) == folder / "02_grpo"
    assert find_evaluation(f"{run}:sft") == folder / "01_sft"
    assert find_evaluation(f"{folder}/00_base.json") == folder / "00_base"
    assert find_evaluation("x/qwen2.5") == Path("x/qwen2.5")
    with pytest.raises(InputError, match="base, sft, grpo"):
        find_evaluation(f"{run}:dpo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a run with evaluations"):
        find_evaluation(str(tmp_path / "empty"))


def test_eval_prints_estimates_and_keeps_what_is_there(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Path]] = []

    def evaluate_model(source: str, recipe: Any, out: Path, console: Any) -> EvalReport:
        seen.append((source, out))
        return evaluation(out, "1000")

    monkeypatch.setattr(library, "evaluate_model", evaluate_model)
    result = lydian("eval", recipe, "--model", "runs/x/models/01_sft")
    assert result.exit_code == 0, result.output
    assert seen == [("runs/x/models/01_sft", Path("evaluations/demo_runs_x_models_01_sft"))]
    assert "25.0 %" in result.output and "correct 25.0 %, wrong 75.0 %" in result.output
    assert lydian("eval", recipe, "--model", "runs/x/models/01_sft").exit_code == 2
    assert lydian("eval", recipe, "--out", "mine").exit_code == 0
    assert seen[1] == ("tiny", Path("mine"))


def test_report_of_something_that_is_no_run(tmp_path: Path) -> None:
    assert lydian("report", str(tmp_path)).exit_code == 1
