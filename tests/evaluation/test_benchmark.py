from __future__ import annotations

import pytest

from lydian.data.problems import Message, Problem
from lydian.errors import DataError, InputError, VerifierError


def _problem(problem_id, answer):
    return Problem(id=problem_id, messages=(Message(role="user", content="?"),), answer=answer)


def test_spec_tells_unlike_benchmarks_apart(make_benchmark, same_text):
    spec = make_benchmark().spec
    assert spec == make_benchmark().spec
    assert (spec.num_problems, spec.stop_tokens, spec.verifier) == (4, (0,), "same_text:1")
    assert set(spec.differences(make_benchmark(3).spec)) == {"problems", "num_problems"}
    assert set(spec.differences(make_benchmark(seed=1).spec)) == {"sampling.seed"}
    assert set(spec.differences(make_benchmark(num_samples=2).spec)) == {"num_samples"}
    assert set(spec.differences(make_benchmark(verifier=same_text("same_text:2")).spec)) == {"verifier"}


def test_equal_settings_digest_alike_however_they_are_written(make_benchmark):
    assert make_benchmark(temperature=1).spec.digest == make_benchmark(temperature=1.0).spec.digest


@pytest.mark.parametrize(
    ("problems", "error", "message"),
    [
        ((), InputError, "no problems"),
        ((_problem("a", "1"), _problem("a", "2")), DataError, "'a' twice"),
        ((_problem("a", "1"), _problem("b", None)), VerifierError, "gold answer"),
    ],
)
def test_problems_are_checked_at_construction(make_benchmark, problems, error, message):
    with pytest.raises(error, match=message):
        make_benchmark(problems=problems)


def test_greedy_takes_one_sample(make_benchmark):
    assert make_benchmark(temperature=0.0).spec.num_samples == 1
    for arguments in ({"temperature": 0.0, "num_samples": 2}, {"num_samples": 0}):
        with pytest.raises(InputError, match="num_samples"):
            make_benchmark(**arguments)
