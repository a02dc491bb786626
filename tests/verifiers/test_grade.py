import json
import os
import threading
import time
from pathlib import Path

import pytest

from lydian.data.verdict import Outcome
from lydian.verifiers import make_verifier
from lydian.verifiers.grade import grade_lines
from lydian.verifiers.verifier import judged

CASES = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[2] / "../shared/data")).parent / "cases/graders.jsonl"

KINDS = {
    "math_equal": ("math", {"answer_only": True}),
    "extract": ("math", {}),
    "robustness": ("math", {"cpu_seconds": 1.0}),
    "gsm8k": ("gsm8k", {}),
    "choice": ("choice", {}),
}
EXPECTED = {
    "correct": {"correct"},
    "incorrect": {"wrong"},
    "unparsable": {"unparsed", "truncated"},
}


def test_bad_lines_give_an_error_in_their_place_and_the_rest_is_graded() -> None:
    lines = [
        '{"id": "a", "gold": "4", "prediction": "4"}',
        "not json",
        "",
        '{"id": "b", "gold": "4"}',
        '{"id": "c", "gold": "many", "prediction": "4"}',
        "[1]",
        '{"id": "d", "gold": "4", "prediction": true}',
        '{"id": "e", "gold": 4, "prediction": 5.0}',
        '{"gold": "4", "prediction": "2 + 2 is", "finish": "length"}',
        '{"id": "f", "gold": "4", "prediction": "4", "finish": "soon"}',
    ]
    results = list(grade_lines(lines, make_verifier("numeric")))
    assert [(result["id"], result["outcome"]) for result in results] == [
        ("a", "correct"),
        (None, "failed"),
        ("b", "failed"),
        ("c", "failed"),
        (None, "failed"),
        ("d", "failed"),
        ("e", "wrong"),
        (None, "truncated"),
        ("f", "failed"),
    ]
    assert ["line" in result.get("error", "") for result in results] == [
        outcome == "failed" for outcome in (result["outcome"] for result in results)
    ]
    assert results[2]["error"].startswith("line 4:")  # the blank line counts


def test_results_come_as_lines_come() -> None:
    def lines():
        yield '{"gold": "4", "prediction": "4"}'
        raise AssertionError("read ahead")

    assert next(grade_lines(lines(), make_verifier("numeric")))["outcome"] == "correct"


class Slow:
    """Judges in threads; what it is told to takes a while."""

    name, fingerprint, num_threads = "slow", "slow:1", 3

    def check(self, problem):
        pass

    def verify(self, problem, text, finish):
        time.sleep(float(text))
        return judged(self, Outcome.CORRECT, text)


def test_results_of_calls_at_once_keep_the_order_of_the_lines() -> None:
    """Every third line takes longest, and three are judged at a time."""
    texts = ["0.06" if i % 3 == 0 else "0.001" for i in range(12)]
    lines = [json.dumps({"id": i, "gold": "4", "prediction": text}) for i, text in enumerate(texts)]
    results = list(grade_lines(lines, Slow()))
    assert [(row["id"], row["extracted"]) for row in results] == list(enumerate(texts))


def test_a_caller_that_waits_for_an_answer_before_it_writes_on_gets_it() -> None:
    answered = threading.Event()

    def lines():
        yield '{"id": 1, "gold": "4", "prediction": "0"}'
        assert answered.wait(20), "no answer came"
        yield '{"id": 2, "gold": "4", "prediction": "0"}'

    results = grade_lines(lines(), Slow())
    assert next(results)["id"] == 1
    answered.set()
    assert [row["id"] for row in results] == [2]


def test_an_input_that_breaks_raises_after_what_came_before() -> None:
    def lines():
        yield '{"id": 1, "gold": "4", "prediction": "0"}'
        raise OSError("the pipe broke")

    results = grade_lines(lines(), Slow())
    assert next(results)["id"] == 1
    with pytest.raises(OSError, match="pipe"):
        next(results)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cases_in_which_public_graders_erred(kind: str) -> None:
    if not CASES.is_file():
        pytest.skip(f"needs {CASES}")
    name, settings = KINDS[kind]
    verifier = make_verifier(name, **settings)
    rows = [row for row in map(json.loads, CASES.read_text(encoding="utf-8").splitlines()) if row["kind"] == kind]
    results = grade_lines(map(json.dumps, rows), verifier)
    allowed = EXPECTED | ({"incorrect": {"wrong", "failed"}} if kind == "robustness" else {})
    wrong = [
        (row["id"], row["expected"], result["outcome"], result["reason"])
        for row, result in zip(rows, results, strict=True)
        if result["outcome"] not in allowed[row["expected"]]
    ]
    assert rows
    assert wrong == []
