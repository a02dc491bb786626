"""Generations and verdicts lie apart: judged twice, stored once; what does not belong together is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from lydian.data.verdict import Outcome
from lydian.errors import DataError
from lydian.evaluation.records import EvalReport


def judged_again(report):
    """The same completions, every verdict the other way round."""
    records = tuple(
        dataclasses.replace(r, outcome=Outcome.WRONG if r.is_correct else Outcome.CORRECT, score=1 - r.score)
        for r in report.records
    )
    return dataclasses.replace(report, records=records, rescored_from="same_text:1")


def test_verdicts_hold_no_completion_and_completions_no_verdict(make_report, tmp_path):
    make_report(["cw"]).save(tmp_path / "a")
    (first, _) = map(json.loads, (tmp_path / "a.generations.jsonl").read_text().splitlines())
    assert set(first) == {"problem_id", "sample", "text", "num_tokens", "finish"}
    (first, _) = map(json.loads, (tmp_path / "a.records.jsonl").read_text().splitlines())
    assert first["outcome"] == "correct" and not {"text", "num_tokens", "finish"} & set(first)


def test_a_second_verdict_names_the_first_one_s_completions(make_report, tmp_path):
    """Neither file of the first report changes, and both reports come back whole."""
    report = make_report(["cw", "wc"])
    report.save(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = judged_again(report)
    again.save(tmp_path / "rescored" / "v2" / "a", generations=tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "rescored" / "v2").iterdir()) == ["a.json", "a.records.jsonl"]
    assert json.loads((tmp_path / "rescored" / "v2" / "a.json").read_text())["generations"] == (
        "../../a.generations.jsonl"
    )
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert EvalReport.load(tmp_path / "a") == report
    assert EvalReport.load(tmp_path / "rescored" / "v2" / "a") == again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("I say right", "I say wrong"), "generations_digest"),
        (lambda text: text.split("\n", 1)[1], "2 verdicts on 1 completions"),
        (lambda text: text.replace('"p1"', '"p9"'), "another completion"),
        (lambda text: text.replace('"finish"', '"end"'), "the fields"),
    ],
)
def test_changed_completions_are_noticed(make_report, tmp_path, change, message):
    make_report(["c", "c"]).save(tmp_path / "a")
    path = tmp_path / "a.generations.jsonl"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        EvalReport.load(tmp_path / "a")


def test_a_report_from_before_completions_had_a_file_is_read_and_judged_again(make_report, tmp_path):
    """Its records hold everything; a second report of it then has the completions beside itself."""
    report = make_report(["cw", "wc"])
    report.save(tmp_path / "a")
    (tmp_path / "a.generations.jsonl").unlink()
    lines = "".join(record.to_line() for record in report.records)
    (tmp_path / "a.records.jsonl").write_text(lines)
    head = json.loads((tmp_path / "a.json").read_text())
    del head["generations"]
    head["records_digest"] = hashlib.sha256(lines.encode()).hexdigest()
    (tmp_path / "a.json").write_text(json.dumps(head))
    assert EvalReport.load(tmp_path / "a") == report
    again = judged_again(report)
    again.save(tmp_path / "b", generations=tmp_path / "a")
    assert EvalReport.load(tmp_path / "b") == again and (tmp_path / "b.generations.jsonl").is_file()
