"""`evaluate`: a benchmark and an engine in, a report out; an interrupted evaluation goes on where it stopped."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path

from lydian.data.problems import Problem
from lydian.data.trajectory import Completion, Finish
from lydian.errors import EngineError, InputError, RunError, VerifierError
from lydian.evaluation.benchmark import Benchmark
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec
from lydian.rollout.engine import Engine, Progress, Request
from lydian.verifiers.verifier import verify_all

CHUNK_PROBLEMS = 64
"""Problems sampled, judged and stored together: what an interruption can cost at most."""


def evaluate(
    benchmark: Benchmark,
    engine: Engine,
    *,
    name: str,
    weights_digest: str | None = None,
    progress: Progress | None = None,
    partial: Path | None = None,
) -> EvalReport:
    """Samples every problem of the benchmark with the engine's weights, judges the completions, and reports.

    name            what is evaluated: a stage, a checkpoint
    weights_digest  digest of the weights that the engine holds; stored in the report, and needed for `partial`
    progress        called with (completions finished, asked for), the ones found in `partial` among them
    partial         a JSONL file to which finished chunks are appended, and from which a killed evaluation goes on. Its
                    first line names spec and weights; a file of others is an error, never silently reused or replaced.
                    A chunk that was being written is done again, so that every chunk is sampled as if uninterrupted.
                    The file stays: delete it when the report is saved.

    Raises EngineError if the engine breaks its contract or aborts a completion; VerifierError if another verifier than
    the spec's signed a verdict; RunError if `partial` belongs to another evaluation; DataError (with file and line) if
    it is damaged. Warns of verdicts that FAILED.
    """
    journal = None if partial is None else _Journal(partial, benchmark, weights_digest)
    records = [] if journal is None else journal.resume()
    version = engine.version
    num_asked = len(benchmark.problems) * benchmark.num_samples

    def tell(finished: int, _: int = 0) -> None:
        if progress is not None:
            progress(len(records) + finished, num_asked)

    tell(0)
    while len(records) < num_asked:
        start = len(records) // benchmark.num_samples
        chunk = benchmark.problems[start : start + CHUNK_PROBLEMS]
        finished = _judge(benchmark, chunk, _sample(benchmark, engine, chunk, version, tell))
        if journal is not None:
            journal.append(finished)
        records += finished
        tell(0)
    report = EvalReport(
        spec=benchmark.spec,
        benchmark=benchmark.name,
        name=name,
        records=tuple(records),
        weights_version=version,
        weights_digest=weights_digest,
        problems=benchmark.problems,
    )
    if report.num_failed:
        example = next(record for record in report.records if not record.is_judged)
        warnings.warn(
            f"{name} on {benchmark.name}: {report.num_failed} of {num_asked} verdicts FAILED and are left out of every "
            f"estimate; the first: problem {example.problem_id!r}, {example.reason or 'no reason given'}",
            stacklevel=2,
        )
    return report


def _sample(
    benchmark: Benchmark, engine: Engine, problems: Seq[Problem], version: int, progress: Progress
) -> list[list[Completion]]:
    """Completions for each problem; one weight version drew them all and none was aborted."""
    requests = [
        Request(
            problem_id=problem.id,
            prompt=benchmark.template.encode_prompt(problem.messages),
            num_samples=benchmark.num_samples,
            sampling=benchmark.sampling,
        )
        for problem in problems
    ]
    groups = engine.generate(requests, progress)
    sizes = [len(group) for group in groups]
    if sizes != [benchmark.num_samples] * len(problems):
        raise _engine_error(f"{len(groups)} groups of sizes {sorted(set(sizes))}", "one completion for each asked for")
    for completion in (completion for group in groups for completion in group):
        versions = {drawn_by for _, drawn_by in completion.versions}
        if not versions <= {version}:
            raise _engine_error(f"tokens of weight versions {sorted(versions)}", f"all of version {version}")
        if completion.finish is Finish.ABORT:
            raise _engine_error("an aborted completion", "every completion to finish; an aborted one is not wrong")
    return groups


def _judge(benchmark: Benchmark, problems: Seq[Problem], groups: Seq[Seq[Completion]]) -> list[EvalRecord]:
    jobs = [
        (problem, sample, completion, benchmark.template.decode(completion.tokens))
        for problem, group in zip(problems, groups, strict=True)
        for sample, completion in enumerate(group)
    ]
    verdicts = verify_all(benchmark.verifier, [(problem, text, done.finish) for problem, _, done, text in jobs])
    strangers = {verdict.verifier for verdict in verdicts} - {benchmark.spec.verifier}
    if strangers:
        raise VerifierError(
            where=f"evaluate, verdicts on {benchmark.name!r}",
            given=f"verdicts signed by {sorted(strangers)}",
            expected=f"the spec's verifier, {benchmark.spec.verifier!r}",
            fix="Let the verifier sign its verdicts with its own fingerprint, which must not change while it works.",
        )
    return [
        EvalRecord.of(problem, sample, text, completion, verdict)
        for (problem, sample, completion, text), verdict in zip(jobs, verdicts, strict=True)
    ]


def _engine_error(given: str, expected: str) -> EngineError:
    return EngineError(
        where="evaluate, completions from the engine",
        given=given,
        expected=expected,
        fix="Leave the engine alone while it is evaluated; chunks finished before are kept where `partial` was given.",
    )


class _Journal:
    """The file of finished chunks: a first line with spec and weights, then one record a line."""

    def __init__(self, path: Path, benchmark: Benchmark, weights_digest: str | None) -> None:
        if weights_digest is None:
            raise InputError(
                where="evaluate, weights_digest",
                given=None,
                expected="the digest of the engine's weights, since `partial` is given",
                fix="Pass weights_digest, so that records of other weights are never taken for these.",
            )
        self.path = path
        self.benchmark = benchmark
        self.weights_digest = weights_digest

    def resume(self) -> list[EvalRecord]:
        """The records of whole chunks; the file is cut back to them, or begun."""
        content = self.path.read_bytes() if self.path.exists() else b""
        first_line = json.dumps({"spec": asdict(self.benchmark.spec), "weights": self.weights_digest}) + "\n"
        if len(content) < len(first_line) and first_line.encode().startswith(content):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(0, first_line)
            return []
        # A line without its newline was being written when the evaluation was killed.
        head, *lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True) or [content]
        self._check_head(head)
        num_problems = len(lines) // self.benchmark.num_samples
        if num_problems < len(self.benchmark.problems):
            num_problems -= num_problems % CHUNK_PROBLEMS
        kept = lines[: num_problems * self.benchmark.num_samples]
        records = [
            EvalRecord.from_line(line, where=f"{self.path}:{number}") for number, line in enumerate(kept, start=2)
        ]
        self._check_order(records)
        self._write(len(head) + sum(map(len, kept)), "")
        return records

    def append(self, records: Seq[EvalRecord]) -> None:
        self._write(self.path.stat().st_size, "".join(record.to_line() for record in records))

    def _write(self, offset: int, text: str) -> None:
        """Cuts the file at `offset` and writes the text there, safe from a stop of the machine once this returns."""
        with self.path.open("ab") as file:
            file.truncate(offset)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def _check_head(self, line: bytes) -> None:
        try:
            head = json.loads(line)
            spec, weights = EvalSpec.from_row(head["spec"]), head["weights"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._error(f"{self.path}:1", f"{type(error).__name__}: {error}") from error
        differing = spec.differences(self.benchmark.spec)
        if weights != self.weights_digest:
            differing["weights"] = (weights, self.weights_digest)
        if differing:
            described = "; ".join(f"{key} {there!r}, now {here!r}" for key, (there, here) in differing.items())
            raise self._error(str(self.path), f"records of another evaluation ({described})")

    def _check_order(self, records: Seq[EvalRecord]) -> None:
        samples = range(self.benchmark.num_samples)
        expected = ((problem.id, sample) for problem in self.benchmark.problems for sample in samples)
        for number, (record, wanted) in enumerate(zip(records, expected, strict=False), start=2):
            if (record.problem_id, record.sample) != wanted:
                raise self._error(f"{self.path}:{number}", f"problem and sample {record.problem_id, record.sample}")

    def _error(self, where: str, given: str) -> RunError:
        return RunError(
            where=where,
            given=given,
            expected="the finished part of this very evaluation",
            fix="Delete the file to start over, or give another path.",
        )
