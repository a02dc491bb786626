"""Estimates from k samples: which k, the values of small reports by hand, and scores read from a file."""

from __future__ import annotations

import json

import pytest

from lydian.errors import DataError, InputError
from lydian.evaluation.at_k import at_k, default_ks, read_scores


@pytest.mark.parametrize(("num", "ks"), [(1, ()), (2, (2,)), (4, (2, 4)), (6, (2, 4, 6)), (8, (2, 4, 8))])
def test_default_ks_are_powers_of_two_and_n(num, ks):
    assert default_ks(num) == ks


def test_values_by_hand(make_report):
    """Two problems of 4 samples with 2 and 0 right. pass@2: (1 − 1/6)/2; pass^2: (1/6)/2; four samples: 1/2 and 0.

    maj@2 of the first: its answers are right, right, bad, bad: of 6 pairs one is all right and 4 are ties: (1 + 2)/6.
    """
    table = at_k(make_report(["ccww", "wwww"]))
    assert list(table) == [2, 4]
    assert table[2]["pass@k"].value == pytest.approx(5 / 12)
    assert table[2]["pass^k"].value == pytest.approx(1 / 12)
    assert table[2]["maj@k"].value == pytest.approx(1 / 4)
    assert (table[4]["pass@k"].value, table[4]["pass^k"].value) == (0.5, 0)


def test_rm_at_k_takes_the_best_scored(make_report):
    """Scores rank the right sample of p0 first and that of p1 last: rm@2 over both samples is 1 and 0."""
    report = make_report(["cw", "cw"])
    scores = {("p0", 0): 0.9, ("p0", 1): 0.1, ("p1", 0): -1.0, ("p1", 1): 3.0}
    assert at_k(report, [2], scores)[2]["rm@k"].value == 0.5
    with pytest.raises(InputError, match="no score"):
        at_k(report, [2], {})


def test_more_than_the_samples_is_refused_and_failures_leave_nothing(make_report):
    """n = 2 samples: k = 3 is a guess. One judged sample of each problem: k = 2 has no estimate, k = 1 has."""
    with pytest.raises(InputError, match="k = 3"):
        at_k(make_report(["cw"]), [3])
    table = at_k(make_report(["cf", "fw"]), [1, 2])
    assert table[1]["pass@k"].value == 0.5 and set(table[2].values()) == {None}


def test_scores_of_another_report_s_records(make_report, tmp_path):
    report = make_report(["cw", "wf"])
    report.save(tmp_path / "ranked")
    path = tmp_path / "ranked.records.jsonl"
    assert read_scores(path, report.records) == {("p0", 0): 1.0, ("p0", 1): 0.0, ("p1", 0): 0.0}
    path.write_text(json.dumps({"problem_id": "p0", "sample": 0, "score": 1, "text": "another"}) + "\n")
    with pytest.raises(InputError, match="another text"):
        read_scores(path, report.records)
    path.write_text('{"problem_id": "p9", "sample": 0, "score": 1}\n')
    with pytest.raises(InputError, match="p9"):
        read_scores(path, report.records)
    path.write_text('{"problem_id": "p0", "sample": 0}\n')
    with pytest.raises(DataError, match="score"):
        read_scores(path, report.records)


def test_the_saved_head_has_them(make_report, tmp_path):
    make_report(["cw", "cc"]).save(tmp_path / "a")
    head = json.loads((tmp_path / "a.json").read_text())
    assert head["estimates"]["at_k"]["2"]["pass^k"]["value"] == 0.5
    make_report("cw").save(tmp_path / "b")
    assert json.loads((tmp_path / "b.json").read_text())["estimates"]["at_k"] == {}
