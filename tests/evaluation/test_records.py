"""Reports: what they estimate from hand-made records, and that they come back from disk whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from lydian.data.verdict import Outcome
from lydian.errors import DataError, InputError, VerifierError
from lydian.evaluation.records import EvalReport
from lydian.evaluation.statistics import wilson


def test_accuracy_of_one_sample_a_problem(make_report):
    """2 of 5 correct; the interval is Wilson's over 5 problems."""
    assert make_report(["c", "w", "c", "u", "w"]).accuracy() == wilson(0.4, 5)


def test_failed_verdicts_leave_the_denominator_and_are_counted(make_report):
    """One correct, one wrong, two failed: 1/2, not 1/4."""
    report = make_report(["c", "f", "w", "f"])
    assert report.accuracy() == wilson(0.5, 2)
    assert report.num_failed == 2
    assert report.outcome_shares() == {
        Outcome.CORRECT: 0.25,
        Outcome.WRONG: 0.25,
        Outcome.UNPARSED: 0.0,
        Outcome.TRUNCATED: 0.0,
        Outcome.FAILED: 0.5,
    }
    assert report.shares_correct() == {"p0": 1.0, "p2": 0.0}


def test_several_samples_are_averaged_within_problems(make_report):
    """Shares 1 (one failed), ½, 0 over problems: mean ½, though 3 of 7 judged samples are correct."""
    report = make_report(["ccf", "cwf", "www"])
    assert report.accuracy().value == pytest.approx(0.5)
    assert report.accuracy().num == 3


def test_no_verdict_at_all_is_an_error_and_still_saved(make_report, tmp_path):
    report = make_report(["f", "f"])
    with pytest.raises(VerifierError, match="it broke"):
        report.accuracy()
    report.save(tmp_path / "00_base")
    assert json.loads((tmp_path / "00_base.json").read_text())["estimates"]["accuracy"] is None
    assert EvalReport.load(tmp_path / "00_base") == report


def test_format_is_the_named_part(make_report):
    """u has format 0, c and w have 1; the failed record has no such part and leaves the denominator: 2/3."""
    assert make_report(["c", "u", "w", "f"]).format() == wilson(2 / 3, 3)


def test_format_counts_where_only_the_content_failed(make_report):
    """The format of p1 was judged (0) though its content was not: 1/2, while accuracy rests on p0 alone."""
    report = make_report(["c", "f"])
    judged_part = dataclasses.replace(report.records[1], parts={"format": 0.0})
    report = dataclasses.replace(report, records=(report.records[0], judged_part))
    assert report.format() == wilson(0.5, 2)
    assert report.accuracy() == wilson(1.0, 1)


def test_no_format_part_is_no_estimate(make_report):
    report = make_report(["c", "w"])
    bare = tuple(dataclasses.replace(record, parts={"content": 1.0}) for record in report.records)
    assert dataclasses.replace(report, records=bare).format() is None


def test_mean_tokens(make_report):
    """Samples 0 and 1 have 10 and 11 tokens."""
    assert make_report(["cw", "ww"]).mean_tokens() == 10.5


def test_pass_and_maj_at_k(make_report):
    """pass@2 of 1 in 4 correct is ½, of 0 in 4 is 0: mean ¼. maj@4: {right: 1, bad: 3} loses; a problem split between
    two right and one each of two other answers wins: mean ½ with the second problem so replaced."""
    report = make_report(["cwww", "wwww"])
    assert report.pass_at_k(2).value == pytest.approx(0.25)
    assert report.maj_at_k(4).value == 0.0
    spread = make_report(["cwww", ["c", "c", ("w", "7"), ("w", "8")]])
    assert spread.maj_at_k(4).value == pytest.approx(0.5)


def test_at_k_needs_k_samples(make_report):
    """The second problem has one judged sample: it drops out of pass@2; pass@3 asks for more than was sampled."""
    report = make_report(["cc", "wf", "ww"])
    estimate = report.pass_at_k(2)
    assert (estimate.value, estimate.num) == (0.5, 2)
    with pytest.raises(InputError, match="k = 3 with 2 samples"):
        report.pass_at_k(3)


def test_by_stratum(make_report):
    """Levels alternate 1, 2: level 1 has p0, p2 (both correct), level 2 has p1 (wrong) and p3 (failed)."""
    strata = make_report(["c", "w", "c", "f"]).by_stratum("level")
    assert strata == {1: wilson(1.0, 2), 2: wilson(0.0, 1)}
    with pytest.raises(DataError, match="'subject'"):
        make_report(["c"]).by_stratum("subject")


def test_a_report_needs_every_sample_of_every_problem(make_report):
    report = make_report(["cw", "ww"])
    for records in (report.records[:-1], report.records[:2], (*report.records[:3], report.records[2])):
        with pytest.raises(DataError, match="samples 0…1"):
            dataclasses.replace(report, records=records)


def test_a_record_needs_a_score_that_is_a_number(make_report):
    (record,) = make_report(["c"]).records
    for broken in ({"score": None}, {"score": float("nan")}, {"parts": {"format": float("inf")}}):
        with pytest.raises(DataError, match="'p0', sample 0"):
            dataclasses.replace(record, **broken)


def test_save_and_load_give_the_report_back(make_report, tmp_path):
    prefix = tmp_path / "evaluations" / "01_qwen2.5"  # a dot that is no suffix
    report = make_report(["cw", "uf", "wc"], name="sft")
    report.save(prefix)
    parts = [f"01_qwen2.5{part}" for part in (".generations.jsonl", ".json", ".records.jsonl")]
    assert sorted(os.listdir(prefix.parent)) == parts
    assert EvalReport.load(prefix) == report
    head = json.loads((prefix.parent / "01_qwen2.5.json").read_text())
    assert head["spec_digest"] == report.spec.digest
    assert head["estimates"]["accuracy"]["value"] == report.accuracy().value
    assert head["estimates"]["num_failed"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"problem_id": "p1", "sam', "Unterminated"),
        ("", "Expecting value"),
        ("[1]", "JSON list"),
        ('{"problem_id": "p1"}', "the fields"),
    ],
)
def test_load_names_the_line_that_is_broken(make_report, tmp_path, line, message):
    make_report(["c", "w", "c"]).save(tmp_path / "r")
    path = tmp_path / "r.records.jsonl"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(DataError, match=message) as error:
        EvalReport.load(tmp_path / "r")
    assert error.value.where == f"{path}:2"


def test_load_names_an_unknown_outcome(make_report, tmp_path):
    make_report(["c", "w"]).save(tmp_path / "r")
    path = tmp_path / "r.records.jsonl"
    path.write_text(path.read_text().replace('"wrong"', '"almost"'))
    with pytest.raises(DataError, match=r"r\.records\.jsonl:2.*almost"):
        EvalReport.load(tmp_path / "r")


def test_load_refuses_files_that_do_not_belong_together(make_report, tmp_path):
    make_report(["c", "w"]).save(tmp_path / "a")
    make_report(["w", "w"]).save(tmp_path / "b")
    os.replace(tmp_path / "b.records.jsonl", tmp_path / "a.records.jsonl")
    with pytest.raises(DataError, match="records_digest"):
        EvalReport.load(tmp_path / "a")
    with pytest.raises(DataError, match="FileNotFoundError"):
        EvalReport.load(tmp_path / "b")


def test_a_failed_save_leaves_the_old_files(make_report, tmp_path, monkeypatch):
    old = make_report(["c", "w"])
    old.save(tmp_path / "r")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        make_report(["w", "w"]).save(tmp_path / "r")
    assert EvalReport.load(tmp_path / "r") == old


def test_spec_digest_depends_on_every_field(make_report):
    spec = make_report(["c"]).spec
    changes = [
        {"problems": "d2"},
        {"num_problems": 2},
        {"template": "plain:2"},
        {"stop_tokens": (0, 1)},
        {"sampling": {**spec.sampling, "seed": 1}},
        {"num_samples": 2},
        {"verifier": "same_text:2"},
    ]
    assert {key for change in changes for key in change} == {f.name for f in dataclasses.fields(spec)}
    others = [dataclasses.replace(spec, **change) for change in changes]
    assert len({spec.digest, *(other.digest for other in others)}) == len(changes) + 1
    assert spec.differences(others[4]) == {"sampling.seed": (0, 1)}
    assert spec.differences(dataclasses.replace(spec)) == {}
