"""Every estimate from k of a problem's n samples in one table: pass@k, pass^k, maj@k, and rm@k under scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lydian.errors import InputError
from lydian.evaluation.files import not_ours, parse_object, read_text
from lydian.evaluation.statistics import Estimate, require_k

if TYPE_CHECKING:
    from lydian.evaluation.records import EvalRecord, EvalReport


def default_ks(num_samples: int) -> tuple[int, ...]:
    """The powers of two from 2 up to n, and n itself; pass@1 is the accuracy.

    >>> default_ks(6), default_ks(1)
    ((2, 4, 6), ())
    """
    powers = [2**power for power in range(1, num_samples.bit_length()) if 2**power < num_samples]
    return (*powers, num_samples) if num_samples > 1 else ()


def at_k(
    report: EvalReport, ks: Seq[int] = (), scores: Mapping[tuple[str, int], float] | None = None
) -> dict[int, dict[str, Estimate | None]]:
    """k → pass@k, pass^k, maj@k (and rm@k where there are scores) → estimate.

    ks      by default `default_ks` of the report's samples a problem
    scores  (problem id, sample) → score of a reward model or other ranker

    None stands where FAILED verdicts leave no problem k samples. Raises InputError for a k that is no 1 ≤ k ≤ n (to
    guess would be biased), and for a judged sample without a score.
    """
    table: dict[int, dict[str, Estimate | None]] = {}
    estimates: dict[str, Callable[[int], Estimate]]
    most = max(Counter(record.problem_id for record in report.records if record.is_judged).values(), default=0)
    for k in ks or default_ks(report.spec.num_samples):
        require_k(f"report {report.name!r}", k, report.spec.num_samples)
        estimates = {"pass@k": report.pass_at_k, "pass^k": report.pass_hat_k, "maj@k": report.maj_at_k}
        if scores is not None:
            estimates["rm@k"] = partial(report.best_of_k, scores=scores)
        table[k] = {name: estimate(k) if most >= k else None for name, estimate in estimates.items()}
    return table


def read_scores(path: Path, records: Seq[EvalRecord]) -> dict[tuple[str, int], float]:
    """Scores of a report's samples: JSON lines {"problem_id", "sample", "score"}, such as another report's records.

    A line whose `score` is null has none. Where a line has the `text`, it must be the one that was judged. Raises
    DataError for a damaged line, InputError for a line about a sample that the report does not have.
    """
    texts = {(record.problem_id, record.sample): record.text for record in records}
    scores = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        where = f"{path}:{number}"
        row = parse_object(line, where=where)
        try:
            key, score = (row["problem_id"], row["sample"]), row["score"]
            found = texts.get(key)
            value = None if score is None else float(score)
        except (KeyError, TypeError, ValueError) as error:
            raise not_ours(where, f"{type(error).__name__}: {error} in {json.dumps(row)[:80]}") from error
        if found is None or row.get("text", found) != found:
            raise InputError(
                where=where,
                given=f"a score of {key}{'' if found is None else ' with another text'}",
                expected="scores of the samples that the report has",
                fix="Score the completions of this very report, for example by `lydian rescore`.",
            )
        if value is not None:
            scores[key] = value
    return scores
