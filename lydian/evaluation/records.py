"""What an evaluation leaves behind: `EvalSpec` (what was asked), `EvalRecord` (one judged sample), `EvalReport`."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from lydian.data.problems import Problem
from lydian.data.trajectory import Completion, Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import DataError, VerifierError
from lydian.evaluation import best_of, statistics
from lydian.evaluation.at_k import at_k
from lydian.evaluation.equivalence import answer_classes
from lydian.evaluation.files import not_ours, parse_object
from lydian.evaluation.statistics import Estimate

Scalar = str | int | float | bool | None
"""What a stratum can be named by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """Everything that must be equal for two scores to be comparable.

    problems      digest over ids, messages and gold answers, in order
    num_problems  how many
    template      fingerprint of the chat template or plain template
    stop_tokens   ids that end a completion, sorted
    sampling      temperature, top_p, top_k, min_p, max_tokens, stop, seed
    num_samples   samples a problem
    verifier      fingerprint of the verifier: name, settings, versions of what it stands on
    """

    problems: str
    num_problems: int
    template: str
    stop_tokens: tuple[int, ...]
    sampling: Mapping[str, object]
    num_samples: int
    verifier: str

    @property
    def digest(self) -> str:
        """SHA-256 of all fields: equal exactly when the specs are."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> EvalSpec:
        """The spec that `asdict` and JSON made this row of. Raises KeyError or TypeError if it is another's."""
        return cls(**{**row, "stop_tokens": tuple(row["stop_tokens"])})

    def differences(self, other: EvalSpec) -> dict[str, tuple[object, object]]:
        """The fields that differ, each with this spec's value and the other's; sampling field by field."""
        mine, theirs = self._flat(), other._flat()
        keys = [*mine, *(key for key in theirs if key not in mine)]
        pairs = {key: (mine.get(key, "absent"), theirs.get(key, "absent")) for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}

    def _flat(self) -> dict[str, object]:
        row = asdict(self)
        sampling = row.pop("sampling")
        return row | {f"sampling.{key}": value for key, value in sampling.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """One sample of one problem, as it was generated and judged.

    problem_id, sample  which problem, and which of its samples (0, 1, …)
    text        raw output of the model, the stop token removed
    extracted   the answer read from it, or None
    outcome, score, parts, reason  the verdict's; score is None exactly when the verifier FAILED
    num_tokens  length of the completion, the stop token included
    finish      why it ended
    metadata    the problem's metadata that are single values (level, subject, …): the strata; `cluster` names problems
                that belong together, see `EvalReport.accuracy`
    question    the last message of the prompt; None in records written before it was kept
    """

    problem_id: str
    sample: int
    text: str
    extracted: str | None
    outcome: Outcome
    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    num_tokens: int
    finish: Finish
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    question: str | None = None

    def __post_init__(self) -> None:
        numbers = [*self.parts.values(), *([] if self.score is None else [self.score])]
        if (self.score is None) != (self.outcome is Outcome.FAILED) or not all(map(math.isfinite, numbers)):
            raise DataError(
                where=f"record of {self.problem_id!r}, sample {self.sample}",
                given=f"outcome {self.outcome}, score {self.score}, parts {dict(self.parts)}",
                expected="finite numbers, and a score for every outcome but FAILED",
                fix="Correct the verifier that made this verdict.",
            )

    @classmethod
    def of(cls, problem: Problem, sample: int, text: str, completion: Completion, verdict: Verdict) -> EvalRecord:
        """The record of one judged completion of a problem."""
        return cls(
            problem_id=problem.id,
            sample=sample,
            text=text,
            extracted=verdict.extracted,
            outcome=verdict.outcome,
            score=verdict.score,
            parts=dict(verdict.parts),
            reason=verdict.reason,
            num_tokens=len(completion.tokens),
            finish=completion.finish,
            metadata={key: value for key, value in problem.metadata.items() if isinstance(value, Scalar)},
            question=problem.question,
        )

    def to_line(self) -> str:
        """One line of JSON, ASCII only, its newline included."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes, *, where: str) -> EvalRecord:
        """The inverse of `to_line`. Raises DataError, naming `where`, for anything that `to_line` would not write."""
        return cls.from_row(parse_object(line, where=where), where=where)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, where: str) -> EvalRecord:
        """The record whose fields, as JSON values, are `row`. Raises DataError, naming `where`, for anything else."""
        if set(row) | {"question"} != {f.name for f in fields(cls)}:
            raise not_ours(where, f"the fields {sorted(row)}")
        try:
            return cls(**{**row, "outcome": Outcome(row["outcome"]), "finish": Finish(row["finish"])})
        except (ValueError, TypeError, AttributeError) as error:
            raise not_ours(where, f"{type(error).__name__}: {error}") from error

    @property
    def is_judged(self) -> bool:
        return self.outcome is not Outcome.FAILED

    @property
    def is_correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """The records of one model on one benchmark, and what follows from them.

    spec       what was asked
    benchmark  the benchmark's name
    name       what was evaluated: a stage, a checkpoint
    records    problem by problem in the benchmark's order, each with samples 0 … num_samples − 1
    weights_version  the version that drew every token
    weights_digest   digest of those weights, or None if the caller gave none
    problems   what was asked, whole, so that another verifier can judge the same completions; empty in reports written
               before they were kept
    rescored_from    fingerprint of the verifier that judged these completions first; None if it is the spec's

    A verdict FAILED is neither right nor wrong: such samples leave the denominator of every estimate, `num_failed`
    counts them, and a problem that has no other sample drops out of `Estimate.num`.
    """

    spec: EvalSpec
    benchmark: str
    name: str
    records: tuple[EvalRecord, ...]
    weights_version: int
    weights_digest: str | None
    problems: tuple[Problem, ...] = field(default=(), repr=False, compare=False)
    rescored_from: str | None = None

    def __post_init__(self) -> None:
        samples: dict[str, list[int]] = defaultdict(list)
        for record in self.records:
            samples[record.problem_id].append(record.sample)
        wanted = list(range(self.spec.num_samples))
        wrong = [problem_id for problem_id, found in samples.items() if found != wanted]
        if wrong or len(samples) != self.spec.num_problems or not samples:
            raise DataError(
                where=f"report {self.name!r} on {self.benchmark!r}",
                given=f"{len(samples)} problems; wrong samples for {wrong[:3]}",
                expected=f"{self.spec.num_problems} problems, each with samples 0…{self.spec.num_samples - 1} in order",
                fix="Finish the evaluation before making its report.",
            )

    @property
    def num_failed(self) -> int:
        """Samples that the verifier could not judge."""
        return sum(not record.is_judged for record in self.records)

    def shares_correct(self) -> dict[str, float]:
        """Problem id → share of its judged samples that are correct; problems without a judged sample are absent."""
        return {key: fmean(r.is_correct for r in rows) for key, rows in self._judged().items()}

    def accuracy(self) -> Estimate:
        """Share of correct samples, averaged over problems (mean@n), with its interval over problems.

        Where every problem's metadata name a `cluster`, problems of one cluster count as related
        (`statistics.clustered`). Raises VerifierError if no sample could be judged.
        """
        return self._proportion(self._judged())

    def clusters(self) -> dict[str, Scalar]:
        """Problem id → cluster; empty unless every record's metadata name one."""
        if all("cluster" in record.metadata for record in self.records):
            return {record.problem_id: record.metadata["cluster"] for record in self.records}
        return {}

    def format(self) -> Estimate | None:
        """Mean of the verdicts' part `format`, averaged over problems; None if the verifier records no such part.

        A verdict lacks a part that its verifier has exactly when that part FAILED: such samples are left out.
        """
        shares: dict[str, list[float]] = defaultdict(list)
        for record in self.records:
            if "format" in record.parts:
                shares[record.problem_id].append(record.parts["format"])
        if not shares:
            return None
        return statistics.proportion(list(map(fmean, shares.values())), num_samples=self.spec.num_samples)

    def outcome_shares(self) -> dict[Outcome, float]:
        """Share of each outcome, FAILED among them, over all samples; they sum to 1."""
        return {o: fmean(record.outcome is o for record in self.records) for o in Outcome}

    def mean_tokens(self) -> float:
        """Mean completion length in tokens, stop tokens included, over all samples."""
        return fmean(record.num_tokens for record in self.records)

    def pass_at_k(self, k: int) -> Estimate:
        """Mean over problems of the unbiased pass@k, with the bootstrap interval over problems.

        Raises InputError if there are fewer than k samples a problem. A problem that FAILED verdicts leave with fewer
        than k drops out of `Estimate.num`.
        """
        return self._at_k(k, lambda rows: statistics.pass_at_k(len(rows), sum(r.is_correct for r in rows), k))

    def maj_at_k(self, k: int) -> Estimate:
        """Mean over problems of maj@k (a vote by classes of equal answers, exact over subsets and ties), bootstrapped.

        Raises and drops problems as `pass_at_k`.
        """

        def vote(rows: list[EvalRecord]) -> float:
            marks = [row.is_correct for row in rows]
            classes = answer_classes([row.extracted for row in rows], marks)
            return statistics.maj_at_k(list(zip(classes, marks, strict=True)), k)

        return self._at_k(k, vote)

    def pass_hat_k(self, k: int) -> Estimate:
        """Mean over problems of pass^k, the chance that all k samples are correct. Raises and drops as `pass_at_k`."""
        return self._at_k(k, lambda rows: best_of.pass_hat_k(len(rows), sum(r.is_correct for r in rows), k))

    def best_of_k(self, k: int, scores: Mapping[tuple[str, int], float]) -> Estimate:
        """Mean over problems of rm@k: the chance that the best-scored of k samples is correct.

        scores  (problem id, sample) → score of a reward model or other ranker; the higher the better

        Raises InputError as `pass_at_k`, and for a judged sample without a score.
        """
        keys = [(r.problem_id, r.sample) for r in self.records if r.is_judged]
        best_of.require_scores(keys, scores)

        def best(rows: list[EvalRecord]) -> float:
            return best_of.best_of_k([(scores[r.problem_id, r.sample], r.is_correct) for r in rows], k)

        return self._at_k(k, best)

    def by_stratum(self, key: str) -> dict[Scalar, Estimate]:
        """Accuracy for each value of a metadata key, in order of the values.

        Raises DataError if a record lacks the key; VerifierError if no sample could be judged.
        """
        strata: dict[Scalar, dict[str, list[EvalRecord]]] = defaultdict(dict)
        values = self.strata(key)
        for problem_id, rows in self._judged().items():
            strata[values[problem_id]][problem_id] = rows
        return {value: self._proportion(strata[value]) for value in sorted(strata, key=stratum_order)}

    def strata(self, key: str) -> dict[str, Scalar]:
        """Problem id → value of a metadata key. Raises DataError if a record lacks it."""
        for record in self.records:
            if key not in record.metadata:
                raise DataError(
                    where=f"report {self.name!r}, record of {record.problem_id!r}",
                    given=f"metadata {sorted(record.metadata)}",
                    expected=f"the key {key!r}",
                    fix="Choose a key that every problem has, with a single value.",
                )
        return {record.problem_id: record.metadata[key] for record in self.records}

    def save(self, prefix: Path, *, generations: Path | None = None) -> None:
        """Writes `prefix`.problems.jsonl (what was asked), .generations.jsonl (what was generated), .records.jsonl (a
        verdict a line), then `prefix`.json (spec and estimates), each atomically.

        generations  the prefix of the report that these completions were first saved with: they are not written again
        """
        from lydian.evaluation.saved import save

        save(self, prefix, generations=generations)

    @classmethod
    def load(cls, prefix: Path) -> EvalReport:
        """Reads what `save` wrote. Raises DataError at the first line that is no record, or if the files disagree."""
        from lydian.evaluation.saved import load

        return load(prefix)

    @property
    def generations_digest(self) -> str:
        """SHA-256 of what was generated, whoever judged it: equal for a report and its re-scored ones."""
        rows = [[r.problem_id, r.sample, r.text, r.num_tokens, r.finish] for r in self.records]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def estimates(self) -> dict[str, object]:
        """The estimates as JSON values; accuracy is null if nothing could be judged."""
        accuracy = self.accuracy() if self.num_failed < len(self.records) else None
        part = self.format()
        return {
            "accuracy": None if accuracy is None else asdict(accuracy),
            "format": None if part is None else asdict(part),
            "outcomes": {str(outcome): share for outcome, share in self.outcome_shares().items()},
            "mean_tokens": self.mean_tokens(),
            "num_failed": self.num_failed,
            "at_k": {
                str(k): {name: None if e is None else asdict(e) for name, e in row.items()}
                for k, row in (at_k(self) if accuracy else {}).items()
            },
        }

    def _judged(self) -> dict[str, list[EvalRecord]]:
        """Problem id → its judged samples, for the problems that have any, in order."""
        rows: dict[str, list[EvalRecord]] = defaultdict(list)
        for record in self.records:
            if record.is_judged:
                rows[record.problem_id].append(record)
        if not rows:
            raise VerifierError(
                where=f"report {self.name!r} on {self.benchmark!r}",
                given=f"{len(self.records)} verdicts, all FAILED (the first: {self.records[0].reason})",
                expected="at least one sample that the verifier could judge",
                fix="Repair the verifier and judge the records again; a failure is not a wrong answer.",
            )
        return rows

    def _proportion(self, judged: Mapping[str, list[EvalRecord]]) -> Estimate:
        shares = [fmean(record.is_correct for record in rows) for rows in judged.values()]
        clusters = self.clusters()
        if clusters:
            return statistics.clustered(shares, [clusters[problem_id] for problem_id in judged])
        return statistics.proportion(shares, num_samples=self.spec.num_samples)

    def _at_k(self, k: int, value: Callable[[list[EvalRecord]], float]) -> Estimate:
        statistics.require_k(f"report {self.name!r}", k, self.spec.num_samples)
        values = {key: value(rows) for key, rows in self._judged().items() if len(rows) >= k}
        clusters = self.clusters()
        groups = [clusters[key] for key in values] if clusters else None
        return statistics.bootstrap(list(values.values()), clusters=groups)


def stratum_order(value: Scalar) -> tuple[bool, float, str]:
    """A sorting key: numbers first, by size, then everything else by its text."""
    number = float(value) if isinstance(value, int | float) else None
    return (number is None, number or 0.0, str(value))
