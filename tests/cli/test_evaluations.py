"""The commands about evaluations on small reports: what they print, write and return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.data.problems import Message, Problem, problems_digest
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec

PROBLEMS = tuple(
    Problem(
        id=f"p{i}",
        messages=(Message(role="user", content=f"Sam has {i} eggs and buys {i} more today so how many has he now?"),),
        answer=str(2 * i),
    )
    for i in range(40)
)


def write(prefix: Path, num_correct: int, *, name: str) -> str:
    """A report whose first problems are answered rightly in words that `numeric` reads too."""
    spec = EvalSpec(
        problems=problems_digest(PROBLEMS),
        num_problems=len(PROBLEMS),
        template="t:1",
        stop_tokens=(0,),
        sampling={"temperature": 0.0},
        num_samples=1,
        verifier="strict:1",
    )
    records = tuple(
        EvalRecord(
            problem_id=problem.id,
            sample=0,
            text=f"It is {problem.answer}.",
            extracted=problem.answer,
            outcome=Outcome.CORRECT if i < num_correct else Outcome.WRONG,
            score=float(i < num_correct),
            num_tokens=5 + i,
            finish=Finish.STOP,
            question=problem.question,
        )
        for i, problem in enumerate(PROBLEMS)
    )
    EvalReport(
        spec=spec,
        benchmark="eggs",
        name=name,
        records=records,
        weights_version=0,
        weights_digest=None,
        problems=PROBLEMS,
    ).save(prefix)
    return f"{prefix}.json"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three stages, the last not evaluated."""
    (tmp_path / "recipe.json").write_text(json.dumps({"stages": [{"name": "sft"}, {"name": "grpo"}]}))
    (tmp_path / "run.json").write_text(json.dumps({"command": ["lydian", "run", "eggs"]}))
    write(tmp_path / "evaluations" / "00_base", 10, name="base")
    write(tmp_path / "evaluations" / "01_sft", 30, name="sft")
    return tmp_path


def lydian(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_power() -> None:
    result = lydian("power", "--gain", 3, "-n", 1319)
    assert result.exit_code == 0 and result.output.startswith("1737 problems show a gain of 3 points")
    assert "1319 problems show a gain of 3.4 points or more" in result.output
    assert lydian("power").exit_code == 2


def test_gate(run: Path) -> None:
    """20 of 40 gained: the other way round no drop of 10 points is ruled out."""
    rule = ["--rule", "eggs: drop <= 10pt"]
    assert lydian("gate", run, "--baseline", f"{run}:base", *rule).exit_code == 0
    failed = lydian("gate", f"{run}:base", "--baseline", f"{run}:sft", *rule, "--json")
    assert failed.exit_code == 1 and json.loads(failed.output)["passed"] is False
    assert lydian("gate", run, "--rule", "gsm8k: accuracy >= 1pt").exit_code == 1
    assert lydian("gate", run, "--rule", "nonsense").exit_code == 2


def test_rescore_a_run_leaves_the_first_verdicts(run: Path) -> None:
    before = (run / "evaluations" / "00_base.records.jsonl").read_bytes()
    result = lydian("rescore", run, "--verifier", "numeric")
    assert result.exit_code == 0, result.output
    assert "base: 30 of 40 verdicts changed" in result.output and "wrong → correct: 10" in result.output
    assert (run / "evaluations" / "00_base.records.jsonl").read_bytes() == before
    again = sorted((run / "evaluations" / "rescored").glob("numeric-*/*.json"))
    assert [path.name for path in again] == ["00_base.json", "01_sft.json"]
    assert lydian("compare", *again).exit_code == 0


def test_contamination(run: Path, tmp_path: Path) -> None:
    """The training file holds p3 and, with another number, the template of all."""
    train = tmp_path / "train.jsonl"
    train.write_text(json.dumps({"text": PROBLEMS[3].question}) + "\n")
    result = lydian("contamination", train, "--against", run, "--evaluation", run, "--out", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["exact"] == ["p3"] and len(found["contaminated"]) + len(found["template_twins"]) == 40
    assert found["scores"]["clean"] == "not measured" and found["scores"]["all"]["value"] == 0.75


def test_evidence(run: Path) -> None:
    result = lydian("evidence", run)
    assert result.exit_code == 0 and json.loads((run / "evidence.json").read_text())["schema"] == "lydian.evidence/1"
    assert lydian("evidence", run / "evaluations").exit_code == 1


def test_the_table_shows_every_stage_and_what_was_not_measured(run: Path) -> None:
    rows = json.loads(lydian("compare", run, "--table", "json").output)
    assert [row["evaluation"].rpartition(":")[2] for row in rows] == ["base", "sft", "grpo"]
    assert rows[1]["versus_first"]["value"] == 0.5 and len(rows[1]["versus_first"]["gained"]) == 20
    assert rows[2]["accuracy"] == "not measured" and rows[0]["command"] == "lydian run eggs"
    assert rows[1]["versus_first"]["flips"][0]["question"].startswith("Sam has")
    markdown = lydian("compare", run, "--table", "markdown").output
    assert markdown.startswith("| evaluation |") and "not measured" in markdown
    assert "tokens:" in lydian("compare", f"{run}:base", f"{run}:sft").output


def test_best_of_k_needs_one_evaluation_of_several_samples(run: Path) -> None:
    """One sample a problem leaves nothing to choose from; scores belong to one report."""
    scores = run / "evaluations" / "00_base.records.jsonl"
    one = lydian("compare", f"{run}:base", "--scores", scores)
    assert one.exit_code == 2 and "k = 2 with 1 samples" in one.stderr
    assert lydian("compare", run, f"{run}:base", "--scores", scores).exit_code == 2
