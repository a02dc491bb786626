"""`judge_rule`: may this model replace that one? Rules such as `gsm8k: drop <= 1pt`, by paired non-inferiority."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lydian.data.verdict import Outcome
from lydian.errors import InputError
from lydian.evaluation.compare import compare
from lydian.evaluation.records import EvalReport
from lydian.evaluation.statistics import Estimate

Quantity = Literal["drop", "gain", "accuracy", "truncated", "unparsed", "failed"]
UNJUDGED_LIMIT = 0.01
"""Share of problems that a paired rule may leave out (every verdict FAILED) before it counts as not measured."""

_RULE = re.compile(
    r"\s*(?P<benchmark>[^:]+?)\s*:\s*(?P<quantity>[a-z]+)\s*(?P<sign><=|>=|≤|≥)\s*"
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>pts?|points?|pp|%)\s*"
)
_DIRECTIONS: dict[str, str] = {
    "drop": "<=", "gain": ">=", "accuracy": ">=", "truncated": "<=", "unparsed": "<=", "failed": "<="
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition on a benchmark.

    text       as written
    benchmark  the reports' benchmark; * is every benchmark of the reports
    quantity   drop, gain (paired, against the baseline); accuracy, truncated, unparsed, failed (of the report alone)
    bound      share: 1pt is 0.01
    """

    text: str
    benchmark: str
    quantity: Quantity
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a rule holds on one benchmark.

    estimate  what was measured, with its interval; None if it was not measured, and the rule then fails
    reason    one line for a person
    """

    rule: Rule
    benchmark: str
    passed: bool
    estimate: Estimate | None
    reason: str

    def as_row(self) -> dict[str, Any]:
        """The judgement as JSON values."""
        measured = "not measured" if self.estimate is None else asdict(self.estimate)
        return {
            "rule": self.rule.text,
            "benchmark": self.benchmark,
            "passed": self.passed,
            "measured": measured,
            "reason": self.reason,
        }


def parse_rule(text: str) -> Rule:
    """A rule as written on the command line: `BENCHMARK: QUANTITY <= NUMBER pt` (or >=, or %).

    drop <= m       the paired interval of (report − baseline) lies above −m: not worse by more than m
    gain >= m       it lies above m: better by at least m
    accuracy >= m   the interval of the report's accuracy lies above m
    truncated, unparsed, failed <= m   the share of samples with that outcome is at most m

    Raises InputError for anything else, with the direction of the comparison that the quantity has.

    >>> parse_rule("gsm8k: drop <= 1pt").bound
    0.01
    """
    match = _RULE.fullmatch(text)
    sign = match["sign"].replace("≤", "<=").replace("≥", ">=") if match else ""
    if match is None or _DIRECTIONS.get(match["quantity"]) != sign:
        forms = ", ".join(f"{name} {sign} NUMBER pt" for name, sign in _DIRECTIONS.items())
        raise InputError(
            where="rule",
            given=repr(text),
            expected=f"BENCHMARK: one of {forms}",
            fix='Write, for example, "gsm8k: drop <= 1pt"; pt and % are percentage points.',
        )
    quantity: Any = match["quantity"]
    return Rule(text=text, benchmark=match["benchmark"], quantity=quantity, bound=float(match["number"]) / 100)


def judge_rules(rules: Seq[Rule], reports: Seq[EvalReport], baselines: Seq[EvalReport]) -> list[Judgement]:
    """A judgement for each rule on each benchmark that it names. What was not measured fails: silence is no proof.

    reports, baselines  at most one of each for a benchmark

    Raises InputError for two reports of one benchmark, and if a report and its baseline have unlike specs.
    """
    by_name, before = _by_benchmark(reports, "report"), _by_benchmark(baselines, "baseline")
    judgements = []
    for rule in rules:
        for name in by_name if rule.benchmark == "*" else [rule.benchmark]:
            judgements.append(_judge(rule, name, by_name.get(name), before.get(name)))
    return judgements


def _judge(rule: Rule, name: str, report: EvalReport | None, baseline: EvalReport | None) -> Judgement:
    def verdict(passed: bool, reason: str, estimate: Estimate | None = None) -> Judgement:
        return Judgement(rule=rule, benchmark=name, passed=passed, estimate=estimate, reason=reason)

    if report is None:
        return verdict(False, "not measured: no report of this benchmark")
    if rule.quantity in ("truncated", "unparsed", "failed"):
        share = report.outcome_shares()[Outcome(rule.quantity)]
        return verdict(share <= rule.bound, f"{share:.1%} of samples {rule.quantity}, at most {rule.bound:.1%} allowed")
    if report.num_failed == len(report.records):
        return verdict(False, "not measured: no sample could be judged")
    num_problems = report.spec.num_problems
    if rule.quantity == "accuracy":
        accuracy = report.accuracy()
        if num_problems - accuracy.num > UNJUDGED_LIMIT * num_problems:
            return verdict(False, f"not measured: {num_problems - accuracy.num} problems have no judged sample")
        return verdict(
            accuracy.low >= rule.bound, f"{_show(accuracy)}; must lie above {100 * rule.bound:.1f} %", accuracy
        )
    if baseline is None:
        return verdict(False, "not measured: no baseline of this benchmark")
    if baseline.num_failed == len(baseline.records):
        return verdict(False, "not measured: no sample of the baseline could be judged")
    comparison = compare(baseline, report)
    difference = comparison.difference
    if len(comparison.left_out) > UNJUDGED_LIMIT * num_problems:
        return verdict(False, f"not measured: {len(comparison.left_out)} problems have no judged sample in both")
    least = rule.bound if rule.quantity == "gain" else -rule.bound
    # 1e-12: a bound written in decimals is met by the same number computed in binary
    holds = difference.low >= least - 1e-12
    note = ""
    if not holds and difference.value > least:
        note = f"; about {_problems_to_decide(difference, least)} problems could decide"
    return verdict(holds, f"difference {_show(difference)} points; must lie above {100 * least:+.1f}{note}", difference)


def _problems_to_decide(difference: Estimate, least: float) -> int:
    """Problems at which the interval would clear the bound if the difference stayed: its width falls as 1/√N."""
    width, room = difference.value - difference.low, difference.value - least
    return math.ceil(difference.num * (width / room) ** 2)


def _show(estimate: Estimate) -> str:
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def _by_benchmark(reports: Seq[EvalReport], kind: str) -> dict[str, EvalReport]:
    found: dict[str, EvalReport] = {}
    for report in reports:
        if report.benchmark in found:
            raise InputError(
                where=f"gate, {kind}s",
                given=f"two of {report.benchmark!r}: {found[report.benchmark].name!r} and {report.name!r}",
                expected=f"one {kind} for each benchmark",
                fix="Name one of them.",
            )
        found[report.benchmark] = report
    return found
