"""The score on the part of a benchmark that training did not hold."""

from __future__ import annotations

from collections.abc import Iterable

from lydian.errors import DataError
from lydian.evaluation import statistics
from lydian.evaluation.contamination import Contamination
from lydian.evaluation.records import EvalReport
from lydian.evaluation.statistics import Estimate


def clean_scores(report: EvalReport, found: Contamination) -> dict[str, Estimate | None]:
    """Accuracy on all problems, the clean, the contaminated and the template twins, each with its interval.

    None for a part that has no judged problem. Raises DataError if the report is of other problems.
    """
    shares = report.shares_correct()
    unknown = {record.problem_id for record in report.records} - {o.problem_id for o in found.overlaps}
    if unknown:
        raise DataError(
            where=f"clean_scores of {report.name!r}",
            given=f"{len(unknown)} problems that were not looked for, such as {min(unknown)!r}",
            expected="a report of the problems that were compared with the training texts",
            fix="Compare the training texts with this report's own problems.",
        )

    def score(ids: Iterable[str]) -> Estimate | None:
        values = {problem_id: shares[problem_id] for problem_id in ids if problem_id in shares}
        if not values:
            return None
        clusters = report.clusters()
        if clusters:
            return statistics.clustered(list(values.values()), [clusters[problem_id] for problem_id in values])
        return statistics.proportion(list(values.values()), num_samples=report.spec.num_samples)

    parts = {"all": list(shares), "clean": found.clean, "contaminated": found.contaminated, "twins": found.twins}
    return {name: score(ids) for name, ids in parts.items()}
