"""What an evaluation leaves behind: `EvalSpec` (what was asked), `EvalRecord` (one judged sample), `EvalReport`."""

from __future__ import annotations

import hashlib
import json
import math
import os
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
from lydian.evaluation import statistics
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
    metadata    the problem's metadata that are single values (level, subject, …): the strata
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
        )

    def to_line(self) -> str:
        """One line of JSON, ASCII only, its newline included."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes, *, where: str) -> EvalRecord:
        """The inverse of `to_line`. Raises DataError, naming `where`, for anything that `to_line` would not write."""
        row = _parse_object(line, where=where)
        if set(row) != {f.name for f in fields(cls)}:
            raise _not_ours(where, f"the fields {sorted(row)}")
        try:
            return cls(**row | {"outcome": Outcome(row["outcome"]), "finish": Finish(row["finish"])})
        except (ValueError, TypeError, AttributeError) as error:
            raise _not_ours(where, f"{type(error).__name__}: {error}") from error

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

    A verdict FAILED is neither right nor wrong: such samples leave the denominator of every estimate, `num_failed`
    counts them, and a problem that has no other sample drops out of `Estimate.num`.
    """

    spec: EvalSpec
    benchmark: str
    name: str
    records: tuple[EvalRecord, ...]
    weights_version: int
    weights_digest: str | None

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

        Raises VerifierError if no sample could be judged.
        """
        return self._proportion(self._judged())

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
        """Mean over problems of maj@k (a vote by extracted answer, exact over subsets and ties), bootstrap interval.

        Raises and drops problems as `pass_at_k`.
        """
        return self._at_k(k, lambda rows: statistics.maj_at_k([(r.extracted, r.is_correct) for r in rows], k))

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

    def save(self, prefix: Path) -> None:
        """Writes `prefix`.records.jsonl (a record a line), then `prefix`.json (spec and estimates), each atomically."""
        lines = "".join(record.to_line() for record in self.records)
        head = {
            "name": self.name,
            "benchmark": self.benchmark,
            "weights": {"version": self.weights_version, "digest": self.weights_digest},
            "spec": asdict(self.spec),
            "spec_digest": self.spec.digest,
            "estimates": self._estimates(),
            "records_digest": hashlib.sha256(lines.encode()).hexdigest(),
        }
        records_path, head_path = _paths(prefix)
        _write_atomically(records_path, lines)
        _write_atomically(head_path, json.dumps(head, indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, prefix: Path) -> EvalReport:
        """Reads what `save` wrote. Raises DataError at the first line that is no record, or if the files disagree."""
        records_path, head_path = _paths(prefix)
        content = _read(records_path)
        records = tuple(
            EvalRecord.from_line(line, where=f"{records_path}:{number}")
            for number, line in enumerate(content.splitlines(), start=1)
        )
        head = _parse_object(_read(head_path), where=str(head_path))
        try:
            spec = EvalSpec.from_row(head["spec"])
            weights, digest = head["weights"], head["records_digest"]
            rest = {"benchmark": head["benchmark"], "name": head["name"]}
            rest |= {"weights_version": weights["version"], "weights_digest": weights["digest"]}
        except (KeyError, TypeError) as error:
            raise _not_ours(str(head_path), f"{type(error).__name__}: {error}") from error
        if digest != hashlib.sha256(content.encode()).hexdigest():
            raise _not_ours(str(head_path), f"a records_digest that {records_path.name} does not have")
        return cls(spec=spec, records=records, **rest)

    def _estimates(self) -> dict[str, object]:
        """The estimates as JSON values; accuracy is null if nothing could be judged."""
        accuracy = self.accuracy() if self.num_failed < len(self.records) else None
        part = self.format()
        return {
            "accuracy": None if accuracy is None else asdict(accuracy),
            "format": None if part is None else asdict(part),
            "outcomes": {str(outcome): share for outcome, share in self.outcome_shares().items()},
            "mean_tokens": self.mean_tokens(),
            "num_failed": self.num_failed,
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
        return statistics.proportion(shares, num_samples=self.spec.num_samples)

    def _at_k(self, k: int, value: Callable[[list[EvalRecord]], float]) -> Estimate:
        statistics.require_k(f"report {self.name!r}", k, self.spec.num_samples)
        return statistics.bootstrap([value(rows) for rows in self._judged().values() if len(rows) >= k])


def stratum_order(value: Scalar) -> tuple[bool, float, str]:
    """A sorting key: numbers first, by size, then everything else by its text."""
    number = float(value) if isinstance(value, int | float) else None
    return (number is None, number or 0.0, str(value))


def _paths(prefix: Path) -> tuple[Path, Path]:
    # Not `with_suffix`: a name such as qwen2.5 has a dot of its own.
    return prefix.with_name(f"{prefix.name}.records.jsonl"), prefix.with_name(f"{prefix.name}.json")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _not_ours(str(path), f"{type(error).__name__}: {error}") from error


def _write_atomically(path: Path, text: str) -> None:
    """The file is replaced whole or stays as it was, also if the machine stops here."""
    draft = path.with_name(f"{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _parse_object(text: str | bytes, *, where: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:  # broken JSON, or bytes that are not UTF-8
        raise _not_ours(where, f"{error} in {text[:60]!r}") from error
    if not isinstance(row, dict):
        raise _not_ours(where, f"a JSON {type(row).__name__}")
    return row


def _not_ours(where: str, given: str) -> DataError:
    return DataError(
        where=where,
        given=given,
        expected="what EvalReport.save writes",
        fix="If the path is right, the file was cut short or edited: restore it, or evaluate again.",
    )
