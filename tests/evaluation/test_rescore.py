"""Another verifier on the very same completions: nothing sampled, both verdicts kept."""

from __future__ import annotations

import dataclasses

import pytest

from lydian.data.verdict import Outcome, Verdict
from lydian.errors import DataError, InputError
from lydian.evaluation.evaluate import evaluate
from lydian.evaluation.records import EvalReport
from lydian.evaluation.rescore import disagreement, rescore


class Lenient:
    """Everything that holds the gold answer is right."""

    name, fingerprint = "lenient", "lenient:1"

    def check(self, problem):
        assert problem.answer is not None

    def verify(self, problem, text, finish):
        found = problem.answer in text
        outcome = Outcome.CORRECT if found else Outcome.WRONG
        return Verdict(score=float(found), outcome=outcome, extracted=text, reason="held", verifier=self.fingerprint)


@pytest.fixture
def report(make_benchmark, script):
    answers = {"p0": ["0"], "p1": ["is 1"], "p2": ["?"], "p3": ["7"]}
    return evaluate(make_benchmark(4), script(answers), name="base")


def test_the_new_report_differs_in_the_verdicts_only(report, tmp_path) -> None:
    """p1's `is 1` becomes right; the others stay right, (unparsed →) wrong, wrong."""
    report.save(tmp_path / "00_base")
    loaded = EvalReport.load(tmp_path / "00_base")
    again = rescore(loaded, Lenient())
    assert [str(r.outcome) for r in loaded.records] == ["correct", "wrong", "unparsed", "wrong"]
    assert [str(r.outcome) for r in again.records] == ["correct", "correct", "wrong", "wrong"]
    assert again.spec.differences(loaded.spec) == {"verifier": ("lenient:1", "same_text:1")}
    assert again.generations_digest == report.generations_digest and again.rescored_from == "same_text:1"
    again.save(tmp_path / "again")
    assert EvalReport.load(tmp_path / "again").rescored_from == "same_text:1"
    assert EvalReport.load(tmp_path / "00_base") == report
    change = disagreement(loaded, again)
    assert change.num_changed == 2 and change.table["unparsed", "wrong"] == 1 and change.table["wrong", "correct"] == 1


def test_old_reports_need_the_problems_that_were_asked(report, make_benchmark, tmp_path) -> None:
    report.save(tmp_path / "old")
    (tmp_path / "old.problems.jsonl").unlink()
    old = EvalReport.load(tmp_path / "old")
    with pytest.raises(InputError, match="without its problems"):
        rescore(old, Lenient())
    asked = make_benchmark(4).problems
    assert rescore(old, Lenient(), problems=asked).accuracy().value == 0.5
    changed = (dataclasses.replace(asked[0], answer="9"), *asked[1:])
    with pytest.raises(DataError, match="not the report's"):
        rescore(old, Lenient(), problems=changed)


def test_records_without_a_question_are_read(report, tmp_path) -> None:
    """A line as it was written before the question was kept."""
    from lydian.evaluation.records import EvalRecord

    line = report.records[0].to_line().replace(', "question": "say 0"', "")
    assert "question" not in line
    assert EvalRecord.from_line(line, where="x").question is None and report.records[0].question == "say 0"
    with pytest.raises(DataError):
        EvalRecord.from_line(line.replace('"text"', '"texts"'), where="x")


def test_damaged_problems_are_noticed(report, tmp_path) -> None:
    report.save(tmp_path / "r")
    path = tmp_path / "r.problems.jsonl"
    path.write_text(path.read_text().replace('"say 0"', '"say 1"'))
    with pytest.raises(DataError, match="digest"):
        EvalReport.load(tmp_path / "r")


def test_two_models_are_no_disagreement(make_report) -> None:
    with pytest.raises(InputError, match="different completions"):
        disagreement(make_report(["c"]), make_report(["w"]))
