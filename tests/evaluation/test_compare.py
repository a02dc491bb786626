from __future__ import annotations

import dataclasses

import pytest

from lydian.errors import DataError, InputError
from lydian.evaluation.compare import compare
from lydian.evaluation.statistics import paired_difference


def test_one_sample_each_is_exact_mcnemar(make_report):
    """Of 6 problems 4 are gained and 1 is lost: +3/6; p = 2·(1 + 5)/2⁵ = 0.375."""
    change = compare(make_report("wwwwcc"), make_report("cccccw", name="sft"))
    assert change.difference == paired_difference([0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 0])
    assert change.difference.value == pytest.approx(0.5)
    assert (change.test, change.p_value) == ("exact McNemar", pytest.approx(0.375))
    assert change.gained == ("p0", "p1", "p2", "p3")
    assert change.lost == ("p5",)
    assert (change.name_a, change.name_b, change.left_out) == ("base", "sft", ())


def test_several_samples_flip_signs(make_report):
    """Differences of shares: +½ on each of 5 problems, 0 on one: mean 2.5/6; p about 2/2⁵ = 0.0625 (seeded, ± 0.01)."""
    a = make_report(["ww"] * 5 + ["cw"])
    change = compare(a, make_report(["cw"] * 5 + ["wc"], name="grpo"))
    assert change.difference.value == pytest.approx(2.5 / 6)
    assert change.test == "sign flip"
    assert change.p_value == pytest.approx(1 / 16, abs=0.01)
    assert change.p_value == compare(a, make_report(["cw"] * 5 + ["wc"])).p_value
    assert (change.gained, change.lost) == (("p0", "p1", "p2", "p3", "p4"), ())


def test_the_difference_is_b_minus_a(make_report):
    """Swapping the reports swaps the sign, the ends and the lists."""
    a, b = make_report("wwwc"), make_report("ccww")
    there, back = compare(a, b), compare(b, a)
    assert there.difference.value == pytest.approx(0.25)
    assert back.difference.low == pytest.approx(-there.difference.high)
    assert (there.gained, there.lost) == (back.lost, back.gained) == (("p0", "p1"), ("p3",))


def test_problems_without_a_verdict_are_left_out_and_named(make_report):
    """p0 failed before and p3 after: p1 is gained, p2 stays, so +½ over two problems."""
    change = compare(make_report("fwcc"), make_report("cccf"))
    assert change.left_out == ("p0", "p3")
    assert (change.difference.value, change.difference.num) == (0.5, 2)
    with pytest.raises(InputError, match="judged sample in both"):
        compare(make_report("cf"), make_report("fc"))


def test_strata(make_report):
    """Levels alternate 1, 2: level 1 (p0, p2) gains one of two, level 2 (p1, p3) nothing."""
    change = compare(make_report("wwww"), make_report("cwww"), strata=["level"])
    assert change.strata == {"level": {1: paired_difference([0, 0], [1, 0]), 2: paired_difference([0, 0], [0, 0])}}
    with pytest.raises(DataError, match="'subject'"):
        compare(make_report("w"), make_report("c"), strata=["subject"])


def test_unlike_specs_are_refused_with_every_difference(make_report):
    a = make_report("cw")
    b = make_report("cw", verifier="math:9", sampling={"temperature": 0.5, "seed": 0, "stop": ["\n\n"]})
    with pytest.raises(InputError) as error:
        compare(a, b)
    assert "sampling.temperature is 1.0 against 0.5" in error.value.given
    assert "verifier is 'same_text:1' against 'math:9'" in error.value.given
    assert "template" not in error.value.given


def test_equal_specs_with_other_problems_are_refused(make_report):
    a = make_report("c")
    stranger = dataclasses.replace(a, records=(dataclasses.replace(a.records[0], problem_id="q7"),))
    with pytest.raises(DataError, match="problem ids"):
        compare(a, stranger)
