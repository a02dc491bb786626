"""The commands about models that judge, on a random reward model and stored evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lydian.cli.inspection import _encodings
from lydian.cli.main import app
from lydian.data.arithmetic import arithmetic_labelled, arithmetic_preferences, arithmetic_stepwise
from lydian.data.problems import problems_digest
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec
from lydian.models.fresh import tiny_tokenizer
from lydian.text.template import PlainTemplate
from lydian.verifiers.verifier import bare_problem
from tests.models.judging import saved


def lydian(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {
        "outcome": saved(place / "outcome", mean=1.0, deviation=4.0),
        "process": saved(place / "process", steps="comma"),
        "classes": saved(place / "classes", "class_logits", 4, classes=["difference", "product", "quotient", "sum"]),
        "bare": saved(place / "bare", template=None),
    }


def rows_of(kind: str):
    if kind == "outcome":
        for pair in arithmetic_preferences(num=12):
            yield {"prompt": pair.messages[0].content, "chosen": pair.chosen, "rejected": pair.rejected}
    elif kind == "process":
        for item in arithmetic_stepwise(num=12):
            yield {"prompt": item.messages[0].content, "steps": item.steps, "labels": item.labels}
    else:
        for item in arithmetic_labelled(num=12):
            yield {"text": item.messages[0].content, "label": item.label}


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("outcome", ["accuracy", "mean margin", "score and length", "chosen longer", "calibration error"]),
        ("process", ["accuracy", "steps that are right", "calibration error"]),
        ("classes", ["accuracy", "calibration error", "difference"]),
    ],
)
def test_reward_reads_the_data_that_the_model_judges(folders, tmp_path: Path, kind: str, lines: list[str]):
    data = write(tmp_path / "data.jsonl", rows_of(kind))
    out = lydian("reward", folders[kind], "--data", data, "--out", tmp_path / "report.json")
    assert all(line in out for line in lines)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["accuracy"]["value"] <= 1


def test_malformed_rows_stop_it_or_are_listed(folders, tmp_path: Path):
    data = write(tmp_path / "data.jsonl", [*rows_of("outcome"), {"prompt": "q", "chosen": "a", "rejected": "a"}])
    lydian("reward", folders["outcome"], "--data", data, code=2)
    assert "chosen equal to rejected" in lydian("reward", folders["outcome"], "--data", data, "--skip")


REPLIES = ("14+9=23 #### 23", "14+9=24 #### 24", "14+9=5 #### 5", "23")


def evaluation(folder: Path) -> Path:
    """Two problems, four samples each; the first and the last are right."""
    problems = tuple(bare_problem("23", question=f"Start with 14. Add {k}.") for k in (9, 8))
    problems = tuple(type(p)(id=str(k), messages=p.messages, answer=p.answer) for k, p in enumerate(problems))
    records = tuple(
        EvalRecord(
            problem_id=problem.id,
            sample=k,
            text=reply,
            extracted=reply.split()[-1],
            outcome=Outcome.CORRECT if k in (0, 3) else Outcome.WRONG,
            score=float(k in (0, 3)),
            num_tokens=5,
            finish=Finish.STOP,
        )
        for problem in problems
        for k, reply in enumerate(REPLIES)
    )
    spec = EvalSpec(
        problems=problems_digest(problems),
        num_problems=2,
        template="plain",
        stop_tokens=(1,),
        sampling={"temperature": 1.0},
        num_samples=4,
        verifier="numeric:1",
    )
    report = EvalReport(
        spec=spec,
        benchmark="toy",
        name="stage",
        records=records,
        weights_version=1,
        weights_digest=None,
        problems=problems,
    )
    report.save(folder / "stage")
    return folder / "stage.json"


def test_best_of_shows_rm_at_k_beside_the_rest(folders, tmp_path: Path):
    out = lydian("best-of", evaluation(tmp_path), "--model", folders["outcome"], "--k", 2, "--k", 4)
    assert "mean@4" in out and "50.0 %" in out
    assert all(name in out for name in ("k = 2", "k = 4", "pass@k", "maj@k", "rm@k"))


def test_best_of_names_every_aggregation_of_a_process_model(folders, tmp_path: Path):
    out = lydian("best-of", evaluation(tmp_path), "--model", folders["process"], "--k", 4)
    assert all(f"rm@k {how}" in out for how in ("min", "last", "product", "mean"))


def test_a_head_without_its_template_is_refused(folders, tmp_path: Path):
    data = write(tmp_path / "data.jsonl", rows_of("outcome"))
    assert "template" in lydian("reward", folders["bare"], "--data", data, code=2)


def test_over_optimisation_prints_and_draws(tmp_path: Path):
    metrics = [
        {"stage": "ppo", "round": k, "metrics": {"reward": float(k), "heldout_accuracy": 0.5, "mean_tokens": 3.0}}
        for k in range(6)
    ]
    write(tmp_path / "metrics.jsonl", metrics)
    out = lydian("over-optimisation", tmp_path, "ppo", "--svg", tmp_path / "course.svg")
    assert "not over-optimised" in out and "gold was best in round 0 at 50.0%" in out
    assert (tmp_path / "course.svg").read_text().startswith("<svg")
    lydian("over-optimisation", tmp_path, "sft", code=2)


def test_show_says_where_labels_stand():
    """Each labelled step has one site, the text with a class one at its end."""
    template = PlainTemplate(tiny_tokenizer(), prompt="{question}\nSteps:")
    step, text = arithmetic_stepwise(num=1, max_level=2)[0], arithmetic_labelled(num=1)[0]
    ((title, encoded),) = _encodings(step, template)
    assert title.startswith("steps; labels ") and sum(encoded.trained) == len(step.labels)
    ((title, encoded),) = _encodings(text, template)
    assert title == f"class {text.label!r}" and encoded.trained[-1] and sum(encoded.trained) == 1
