"""A world small enough to check by hand: one token a character, answers given by a script, a verifier that compares."""

from __future__ import annotations

import pytest

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Completion, Finish, Sampling
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import VerifierError
from lydian.evaluation.benchmark import Benchmark
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec


class CharacterTemplate:
    name = "characters"
    fingerprint = "characters:1"
    stop_tokens = frozenset({0})

    def encode_prompt(self, messages):
        return tuple(ord(c) for m in messages for c in m.content)

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t)


class SameText:
    """`?` is UNPARSED, `!` is FAILED, anything else is compared with the gold answer."""

    name = "same_text"

    def __init__(self, fingerprint="same_text:1"):
        self.fingerprint = fingerprint

    def check(self, problem):
        if problem.answer is None:
            raise VerifierError(where=problem.id, given=None, expected="a gold answer", fix="Add one.")

    def verify(self, problem, text, finish):
        if text == "!":
            return Verdict(
                score=None, outcome=Outcome.FAILED, extracted=None, reason="it broke", verifier=self.fingerprint
            )
        if text == "?":
            outcome = Outcome.TRUNCATED if finish is Finish.LENGTH else Outcome.UNPARSED
            return Verdict(score=0.0, outcome=outcome, extracted=None, parts={"format": 0.0}, verifier=self.fingerprint)
        is_right = text == problem.answer
        return Verdict(
            score=float(is_right),
            outcome=Outcome.CORRECT if is_right else Outcome.WRONG,
            extracted=text,
            parts={"format": 1.0},
            verifier=self.fingerprint,
        )


class Script:
    """An engine that answers sample k of a problem with `answers[problem_id][k]`; counts the problems it is asked."""

    def __init__(self, answers, *, fail_after=None, version=0):
        self.answers = answers
        self.fail_after = fail_after
        self.version = version
        self.asked = []

    def load(self, weights):
        raise NotImplementedError

    def generate(self, requests, progress=None):
        results = []
        for request in requests:
            if self.fail_after is not None and len(self.asked) >= self.fail_after:
                raise KeyboardInterrupt
            self.asked.append(request.problem_id)
            results.append([self.complete(request, k) for k in range(request.num_samples)])
            if progress is not None:
                progress(sum(map(len, results)), sum(r.num_samples for r in requests))
        return results

    def complete(self, request, sample):
        tokens = (*map(ord, self.answers[request.problem_id][sample]), 0)
        return Completion(
            tokens=tokens,
            logprobs=(0.0,) * len(tokens),
            sampling=request.sampling,
            versions=((len(tokens), self.version),),
            finish=Finish.STOP,
        )


@pytest.fixture
def script():
    return Script


@pytest.fixture
def same_text():
    return SameText


@pytest.fixture
def make_benchmark():
    """A benchmark of `num` problems p0, p1, … whose answers are their indices; levels alternate 1, 2."""

    def make(num=4, *, problems=None, num_samples=1, temperature=1.0, seed=0, verifier=None):
        made = tuple(
            Problem(
                id=f"p{i}",
                messages=(Message(role="user", content=f"say {i}"),),
                answer=str(i),
                metadata={"level": 1 + i % 2, "steps": ["not", "a", "stratum"]},
            )
            for i in range(num)
        )
        return Benchmark(
            name="echo",
            problems=made if problems is None else problems,
            template=CharacterTemplate(),
            sampling=Sampling(temperature=temperature, max_tokens=8, seed=seed),
            verifier=verifier or SameText(),
            num_samples=num_samples,
        )

    return make


@pytest.fixture
def make_report():
    """A report from one string of marks a problem, one mark a sample: `c`orrect, `w`rong, `u`nparsed, `f`ailed.

    A pair (mark, answer) also says what was extracted; otherwise "right" and "bad"."""
    outcomes = {"c": Outcome.CORRECT, "w": Outcome.WRONG, "u": Outcome.UNPARSED, "f": Outcome.FAILED}
    extracted = {"c": "right", "w": "bad", "u": None, "f": None}

    def record(problem, sample, mark):
        mark, answer = mark if isinstance(mark, tuple) else (mark, extracted[mark])
        return EvalRecord(
            problem_id=f"p{problem}",
            sample=sample,
            text=f"I say {answer} – «é»\n",
            extracted=answer,
            outcome=outcomes[mark],
            score=None if mark == "f" else float(mark == "c"),
            parts={} if mark == "f" else {"format": float(mark != "u")},
            reason="it broke" if mark == "f" else "",
            num_tokens=10 + sample,
            finish=Finish.STOP,
            metadata={"level": 1 + problem % 2},
        )

    def make(marks, *, name="base", **changes):
        spec = EvalSpec(
            **{
                "problems": "d1",
                "num_problems": len(marks),
                "template": "plain:1",
                "stop_tokens": (0,),
                "sampling": {"temperature": 1.0, "seed": 0, "stop": ["\n\n"]},
                "num_samples": len(marks[0]),
                "verifier": "same_text:1",
            }
            | changes
        )
        records = tuple(record(i, k, mark) for i, row in enumerate(marks) for k, mark in enumerate(row))
        return EvalReport(
            spec=spec, benchmark="echo", name=name, records=records, weights_version=3, weights_digest="w3"
        )

    return make
