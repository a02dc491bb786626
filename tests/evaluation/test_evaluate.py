"""Records follow from completions and verdicts; an evaluation that was killed goes on to the same report."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import DataError, EngineError, InputError, RunError, VerifierError
from lydian.evaluation import evaluate as evaluate_module
from lydian.evaluation.evaluate import evaluate
from lydian.evaluation.statistics import wilson


def test_records_say_what_was_generated_and_judged(make_benchmark, script):
    """p0 says 0 and then 9, p1 says ? and then 1; a completion has one token a character and the stop token."""
    benchmark = make_benchmark(2, num_samples=2)
    report = evaluate(benchmark, script({"p0": ["0", "9"], "p1": ["?", "1"]}, version=5), name="base")
    seen = [(r.problem_id, r.sample, r.text, r.extracted, r.outcome, r.score, r.num_tokens) for r in report.records]
    assert seen == [
        ("p0", 0, "0", "0", Outcome.CORRECT, 1.0, 2),
        ("p0", 1, "9", "9", Outcome.WRONG, 0.0, 2),
        ("p1", 0, "?", None, Outcome.UNPARSED, 0.0, 2),
        ("p1", 1, "1", "1", Outcome.CORRECT, 1.0, 2),
    ]
    assert report.records[0].parts == {"format": 1.0}
    assert report.records[3].metadata == {"level": 2}  # single values only
    assert {r.finish for r in report.records} == {Finish.STOP}
    assert (report.spec, report.benchmark, report.name) == (benchmark.spec, "echo", "base")
    assert (report.weights_version, report.weights_digest) == (5, None)


def test_failures_are_loud_and_no_zeros(make_benchmark, script):
    engine = script({"p0": ["0"], "p1": ["!"], "p2": ["1"]})
    with pytest.warns(UserWarning, match=r"1 of 3 verdicts FAILED.*'p1'.*it broke"):
        report = evaluate(make_benchmark(3), engine, name="base")
    assert report.accuracy() == wilson(0.5, 2)


def test_progress_counts_completions_of_the_whole_benchmark(make_benchmark, script, monkeypatch):
    monkeypatch.setattr(evaluate_module, "CHUNK_PROBLEMS", 2)
    told = []
    answers = {f"p{i}": ["0", "1"] for i in range(3)}
    benchmark = make_benchmark(3, num_samples=2)
    evaluate(benchmark, script(answers), name="base", progress=lambda *args: told.append(args))
    assert told == [(0, 6), (2, 6), (4, 6), (4, 6), (6, 6), (6, 6)]


@pytest.fixture
def long_run(make_benchmark, script, monkeypatch):
    """Seven problems of two samples in chunks of two; every other answer is right."""
    monkeypatch.setattr(evaluate_module, "CHUNK_PROBLEMS", 2)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow on a busy disk, and no machine is switched off here
    answers = {f"p{i}": [str(i), "x"] for i in range(7)}
    return make_benchmark(7, num_samples=2), lambda **arguments: script(answers, **arguments)


@pytest.mark.parametrize("fail_after", range(8))
def test_a_killed_evaluation_goes_on(long_run, tmp_path, fail_after):
    """Killed while sampling problem number `fail_after`: whole chunks before it are kept, the rest is asked again."""
    benchmark, engine = long_run
    path = tmp_path / "deep" / "partial.jsonl"
    whole = evaluate(benchmark, engine(), name="sft", weights_digest="w1")
    if fail_after < 7:
        with pytest.raises(KeyboardInterrupt):
            evaluate(benchmark, engine(fail_after=fail_after), name="sft", weights_digest="w1", partial=path)
    second = engine()
    assert evaluate(benchmark, second, name="sft", weights_digest="w1", partial=path) == whole
    kept = fail_after - fail_after % 2 if fail_after < 7 else 0
    assert second.asked == [f"p{i}" for i in range(kept, 7)]
    third = engine()
    assert evaluate(benchmark, third, name="sft", weights_digest="w1", partial=path) == whole
    assert third.asked == []


def test_any_cut_of_the_file_is_survived(long_run, tmp_path):
    """A machine can stop in the middle of a write: the file may end after any byte."""
    benchmark, engine = long_run
    path = tmp_path / "partial.jsonl"
    whole = evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    content = path.read_bytes()
    for size in range(0, len(content), 61):
        path.write_bytes(content[:size])
        again = engine()
        assert evaluate(benchmark, again, name="sft", weights_digest="w1", partial=path) == whole
        num_lines = max(content[:size].count(b"\n") - 1, 0)
        assert len(again.asked) == (7 - num_lines // 4 * 2 if num_lines < 14 else 0)
        assert path.read_bytes() == content


def test_a_partial_file_of_another_evaluation_is_an_error(long_run, make_benchmark, tmp_path):
    benchmark, engine = long_run
    path = tmp_path / "partial.jsonl"
    evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    content = path.read_bytes()
    with pytest.raises(RunError, match="weights 'w1', now 'w2'"):
        evaluate(benchmark, engine(), name="sft", weights_digest="w2", partial=path)
    with pytest.raises(RunError, match=r"sampling\.seed 0, now 1"):
        other = make_benchmark(7, num_samples=2, seed=1)
        evaluate(other, engine(), name="sft", weights_digest="w1", partial=path)
    assert path.read_bytes() == content
    path.write_text("my notes")
    with pytest.raises(RunError, match=r"partial\.jsonl:1"):
        evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    assert path.read_text() == "my notes"


def test_a_damaged_partial_file_is_an_error(long_run, tmp_path):
    benchmark, engine = long_run
    path = tmp_path / "partial.jsonl"
    evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\xff" + lines[2], *lines[3:]]))
    with pytest.raises(DataError, match=r"partial\.jsonl:3"):
        evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    path.write_bytes(b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]))
    with pytest.raises(RunError, match=r"partial\.jsonl:3.*'p1', 0"):
        evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)


def test_partial_needs_the_digest_of_the_weights(make_benchmark, script, tmp_path):
    with pytest.raises(InputError, match="weights_digest"):
        evaluate(make_benchmark(1), script({"p0": ["0"]}), name="base", partial=tmp_path / "partial.jsonl")


def test_the_first_line_can_be_read_by_others(long_run, tmp_path):
    benchmark, engine = long_run
    path = tmp_path / "partial.jsonl"
    evaluate(benchmark, engine(), name="sft", weights_digest="w1", partial=path)
    head, record = map(json.loads, path.read_text().splitlines()[:2])
    assert head["weights"] == "w1"
    assert head["spec"]["verifier"] == "same_text:1"
    assert record["outcome"] == "correct"


def test_an_engine_that_breaks_its_contract_is_an_error(make_benchmark, script):
    class Short(script):
        def generate(self, requests, progress=None):
            return super().generate(requests, progress)[:-1]

    class Reloaded(script):
        def complete(self, request, sample):
            return dataclasses.replace(super().complete(request, sample), versions=((1, 0), (1, 1)))

    class Aborted(script):
        def complete(self, request, sample):
            return dataclasses.replace(super().complete(request, sample), finish=Finish.ABORT)

    for engine, message in ((Short, "1 groups"), (Reloaded, r"versions \[0, 1\]"), (Aborted, "aborted")):
        with pytest.raises(EngineError, match=message):
            evaluate(make_benchmark(2), engine({"p0": ["0"], "p1": ["1"]}), name="base")


def test_verdicts_are_the_verifiers_own(make_benchmark, script, same_text):
    """A verifier whose settings change under the benchmark would file its verdicts under the wrong spec."""
    verifier = same_text()
    benchmark = make_benchmark(1, verifier=verifier)
    verifier.fingerprint = "same_text:2"
    with pytest.raises(VerifierError, match=r"signed by \['same_text:2'\].*'same_text:1'"):
        evaluate(benchmark, script({"p0": ["0"]}), name="base")
