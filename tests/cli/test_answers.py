"""lydian grade: from flags and from standard input."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.main import app


def grade(*arguments: str, lines: str | bytes = "") -> Result:
    return CliRunner().invoke(app, ["grade", "--verifier", "numeric", *arguments], input=lines)


@pytest.mark.parametrize(("prediction", "outcome"), [("It is 4.", "correct"), ("It is 5.", "wrong"), ("?", "unparsed")])
def test_one_answer_from_flags(prediction: str, outcome: str) -> None:
    """Wrong is a result, not a failure of the command: the exit code is 0 for each."""
    result = grade("--gold", "4", "--prediction", prediction)
    assert result.exit_code == 0
    row = json.loads(result.stdout)
    assert row["outcome"] == outcome and set(row) == {"id", "outcome", "extracted", "reason"}


def test_many_answers_from_standard_input_keep_their_order() -> None:
    rows = [{"id": f"q{number}", "gold": "4", "prediction": f"It is {number}."} for number in (4, 5)]
    result = grade(lines="\n".join(map(json.dumps, rows)))
    assert result.exit_code == 0
    assert [(row["id"], row["outcome"]) for row in map(json.loads, result.stdout.splitlines())] == [
        ("q4", "correct"),
        ("q5", "wrong"),
    ]


def test_a_bad_line_is_reported_and_the_others_are_graded() -> None:
    good = json.dumps({"gold": "4", "prediction": "4"}).encode()
    result = grade(lines=b"\xff\n{\n" + good + b"\n")
    assert result.exit_code == 2
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["outcome"] for row in rows] == ["failed", "failed", "correct"]
    assert "line 2" in rows[1]["error"]


def test_settings_are_bound_as_in_a_recipe() -> None:
    result = grade("marker=####", "--gold", "4", "--prediction", "5 #### 4")
    assert json.loads(result.stdout)["outcome"] == "correct"
    wrong = grade("market=x", "--gold", "4", "--prediction", "4")
    assert wrong.exit_code == 2 and "numeric.market" in wrong.stderr and "Did you mean marker?" in wrong.stderr
    loose = grade("relative_tolerance=0.1", "--gold", "4.2", "--prediction", "4.3")
    assert json.loads(loose.stdout)["outcome"] == "correct"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gold", "4"], "only --gold"),
        (["--prediction", "4"], "only --prediction"),
        (["oops", "--gold", "4", "--prediction", "4"], "key=value"),
        (["--answer-only", "--gold", "4", "--prediction", "4"], "answer_only"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    result = grade(*arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_an_unknown_verifier() -> None:
    result = CliRunner().invoke(app, ["grade", "--verifier", "numerik", "--gold", "4", "--prediction", "4"])
    assert result.exit_code == 2 and "Did you mean numeric?" in result.stderr


def test_answer_only_is_a_setting_of_math() -> None:
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    arguments = ["grade", "--verifier", "math", "--answer-only", "--gold", "1/2", "--prediction", "0.5"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and json.loads(result.stdout)["outcome"] == "correct"
