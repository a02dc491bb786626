"""`rescore`: a report and another verifier in, a second report of the very same completions out. Nothing is sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from lydian.data.problems import Problem, problems_digest
from lydian.errors import DataError, InputError
from lydian.evaluation.records import EvalRecord, EvalReport
from lydian.rollout.engine import Progress
from lydian.verifiers.verifier import Verifier, verify_all


def rescore(
    report: EvalReport,
    verifier: Verifier,
    *,
    problems: Seq[Problem] = (),
    progress: Progress | None = None,
) -> EvalReport:
    """The report's completions judged again by another verifier; the report itself is not changed.

    problems  what was asked, needed for a report that was saved without its problems
    progress  called with (judged, to judge)

    The new report's spec differs in the verifier only, and `rescored_from` names the first one.

    Raises InputError if there are no problems, DataError if they are not those of the spec, VerifierError for a gold
    answer that the verifier cannot read.
    """
    asked = tuple(problems) or report.problems
    where = f"rescore {report.name!r} on {report.benchmark!r}"
    if not asked:
        raise InputError(
            where=where,
            given="a report without its problems",
            expected="problems to judge against",
            fix="Pass the problems that were asked: those of the run's recipe, or the file that they came from.",
        )
    if problems_digest(asked) != report.spec.problems:
        raise DataError(
            where=where,
            given="problems whose digest is not the report's",
            expected="the problems that were asked, in the same order",
            fix="Load them with the recipe or benchmark that the report was made with.",
        )
    for problem in asked:
        verifier.check(problem)
    by_id = {problem.id: problem for problem in asked}
    items = [(by_id[record.problem_id], record.text, record.finish) for record in report.records]
    verdicts = verify_all(verifier, items, progress)
    records = tuple(
        replace(
            record,
            extracted=verdict.extracted,
            outcome=verdict.outcome,
            score=verdict.score,
            parts=dict(verdict.parts),
            reason=verdict.reason,
            question=by_id[record.problem_id].question,
        )
        for record, verdict in zip(report.records, verdicts, strict=True)
    )
    return replace(
        report,
        spec=replace(report.spec, verifier=verifier.fingerprint),
        records=records,
        problems=asked,
        rescored_from=report.rescored_from or report.spec.verifier,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """How two verdicts on the same completions differ.

    table    (outcome before, outcome after) → samples, equal outcomes included
    changed  (record before, record after) wherever the outcome differs
    """

    table: dict[tuple[str, str], int]
    changed: tuple[tuple[EvalRecord, EvalRecord], ...]

    @property
    def num_changed(self) -> int:
        return len(self.changed)


def disagreement(before: EvalReport, after: EvalReport) -> Disagreement:
    """Where two reports judge the same completions differently.

    Raises InputError if they are not of the same completions.
    """
    if before.generations_digest != after.generations_digest:
        raise InputError(
            where=f"disagreement of {before.name!r} and {after.name!r}",
            given="reports of different completions",
            expected="a report and its re-scored one",
            fix="Use `compare` for two models.",
        )
    pairs = list(zip(before.records, after.records, strict=True))
    table = Counter((str(a.outcome), str(b.outcome)) for a, b in pairs)
    return Disagreement(
        table=dict(sorted(table.items())), changed=tuple((a, b) for a, b in pairs if a.outcome is not b.outcome)
    )
