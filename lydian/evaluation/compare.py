"""`compare`: two reports of equal specs in, one paired `Comparison` out. Reports of unlike specs are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lydian.errors import DataError, InputError
from lydian.evaluation.records import EvalReport, Scalar, stratum_order
from lydian.evaluation.statistics import Estimate, clustered, mcnemar, paired_difference, sign_flip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed from report a to report b, problem by problem.

    name_a, name_b  the reports' names
    difference  accuracy of b minus that of a, over the problems that both judged, with its paired interval
    p_value     two-sided, of no change
    test        what gave the p-value: `exact McNemar` (one sample a problem), `sign flip` (several), or
                `sign flip by cluster` (problems whose metadata name a `cluster`)
    gained, lost  ids of the problems on which b does better, and worse
    left_out    ids of the problems that one of the two has no judged sample of (every verdict FAILED)
    strata      metadata key → value → difference within that stratum
    """

    name_a: str
    name_b: str
    difference: Estimate
    p_value: float
    test: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    left_out: tuple[str, ...]
    strata: Mapping[str, Mapping[Scalar, Estimate]]


def compare(report_a: EvalReport, report_b: EvalReport, *, strata: Seq[str] = ()) -> Comparison:
    """The paired difference b − a of two reports on one benchmark, its interval and its p-value.

    strata  metadata keys (level, subject, …) to give the difference within each value of

    Raises InputError if the specs differ, naming each field with both values, or if no problem was judged in both;
    DataError if a problem lacks a stratum's key, or if equal specs hold unlike problems.
    """
    where = f"compare {report_a.name!r} with {report_b.name!r}"
    _check_comparable(report_a, report_b, where)
    shares_a, shares_b = report_a.shares_correct(), report_b.shares_correct()
    ids = tuple(dict.fromkeys(record.problem_id for record in report_a.records))
    paired = [problem_id for problem_id in ids if problem_id in shares_a and problem_id in shares_b]
    if not paired:
        raise InputError(
            where=where,
            given="no problem with a judged sample in both",
            expected="at least one",
            fix="Look at the reasons of the FAILED verdicts and evaluate again.",
        )

    clusters = report_a.clusters()

    def difference(problems: Seq[str]) -> Estimate:
        if len({clusters[i] for i in problems} if clusters else ()) > 1:
            changes = [shares_b[i] - shares_a[i] for i in problems]
            return clustered(changes, [clusters[i] for i in problems], is_share=False)
        return paired_difference([shares_a[i] for i in problems], [shares_b[i] for i in problems])

    gained = tuple(i for i in paired if shares_b[i] > shares_a[i])
    lost = tuple(i for i in paired if shares_b[i] < shares_a[i])
    if clusters:
        sums: dict[Scalar, float] = defaultdict(float)
        for i in paired:
            sums[clusters[i]] += shares_b[i] - shares_a[i]
        test, p_value = "sign flip by cluster", sign_flip(list(sums.values()))
    elif report_a.spec.num_samples == 1:
        test, p_value = "exact McNemar", mcnemar(len(gained), len(lost))
    else:
        test, p_value = "sign flip", sign_flip([shares_b[i] - shares_a[i] for i in paired])
    by_stratum = {}
    for key in strata:
        values = report_a.strata(key)
        members: dict[Scalar, list[str]] = defaultdict(list)
        for problem_id in paired:
            members[values[problem_id]].append(problem_id)
        by_stratum[key] = {value: difference(members[value]) for value in sorted(members, key=stratum_order)}
    return Comparison(
        name_a=report_a.name,
        name_b=report_b.name,
        difference=difference(paired),
        p_value=p_value,
        test=test,
        gained=gained,
        lost=lost,
        left_out=tuple(i for i in ids if i not in shares_a or i not in shares_b),
        strata=by_stratum,
    )


def _check_comparable(report_a: EvalReport, report_b: EvalReport, where: str) -> None:
    differing = report_a.spec.differences(report_b.spec)
    if differing:
        raise InputError(
            where=where,
            given="unlike specs: " + "; ".join(f"{key} is {a!r} against {b!r}" for key, (a, b) in differing.items()),
            expected="equal problems, template, sampling and verifier",
            fix="Evaluate both with one Benchmark.",
        )
    if {r.problem_id for r in report_a.records} != {r.problem_id for r in report_b.records}:
        raise DataError(
            where=where,
            given="unlike problem ids under equal specs",
            expected="records of the problems that the spec was made from",
            fix="A records file was edited or mixed up: evaluate again.",
        )
