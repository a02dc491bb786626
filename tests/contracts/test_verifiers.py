"""What holds for every verifier: run over all that are registered."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import MissingExtraError
from lydian.verifiers import VERIFIERS, Example, Verifier, make_verifier, verify_all
from lydian.verifiers.verifier import LABEL_FREE

EXAMPLES = [
    pytest.param(name, example, id=f"{name}-{i}")
    for name, registered in VERIFIERS.items()
    for i, example in enumerate(registered.examples)
]

HOSTILE = {
    "empty": "",
    "blank": " \n\t",
    "control characters": "\x00\x1b[31m\ufeff\u202e",
    "lone surrogate": "\ud800 answer: 4",
    "braces": "\\boxed{" * 200 + "{" * 1000,
    "tags": "<think>" * 50 + "</think>" + "<answer>" * 50,
    "digits": "9" * 50_000,
    "huge number": "Answer: 9e99999999",
    "division by zero": "Answer: 1/0",
    "nan": "Answer: nan",
    "code": "__import__('os').abort()",
    "template": "{problem.answer} %s ${gold} {{gold}}",
    "long": "so the answer is " * 6_000,
}


def _made(name: str, example: Example) -> Verifier:
    try:
        return make_verifier(name, **example.settings)
    except MissingExtraError as error:
        pytest.skip(str(error))


def _make(name: str) -> tuple[Verifier, Example]:
    example = VERIFIERS[name].examples[0]
    return _made(name, example), example


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_its_own_examples(name: str, example: Example) -> None:
    verifier = _made(name, example)
    verifier.check(example.problem)
    texts = (example.text, *example.others)
    verdict = verify_all(verifier, [(example.problem, text, example.finish) for text in texts])[0]
    assert (verdict.outcome, verdict.extracted) == (example.outcome, example.extracted), verdict.reason
    assert verdict.verifier == verifier.fingerprint
    assert "\n" not in verdict.reason


@pytest.mark.parametrize("name", VERIFIERS)
def test_it_has_a_right_example_and_one_that_is_not(name: str) -> None:
    outcomes = {example.outcome for example in VERIFIERS[name].examples}
    needs_tokens = getattr(VERIFIERS[name].make, "needs_tokens", False)  # no example here gives it any
    assert Outcome.CORRECT in outcomes or needs_tokens
    assert outcomes - {Outcome.CORRECT}


@pytest.mark.parametrize("name", VERIFIERS)
def test_name_protocol_and_fingerprint(name: str) -> None:
    verifier, example = _make(name)
    assert isinstance(verifier, Verifier)
    assert verifier.name == name
    assert verifier.fingerprint.removeprefix(LABEL_FREE).startswith(f"{name}:")
    assert verifier.fingerprint == make_verifier(name, **example.settings).fingerprint


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", VERIFIERS)
def test_nothing_that_a_model_writes_raises_or_is_paid(name: str, hostile: str) -> None:
    verifier, example = _make(name)
    for finish in Finish:
        verdict = verifier.verify(example.problem, HOSTILE[hostile], finish)
        assert not verdict.is_correct or hostile == "lone surrogate"
        if not HOSTILE[hostile].strip():
            assert verdict.outcome is not Outcome.FAILED


@pytest.mark.parametrize("name", VERIFIERS)
def test_an_empty_completion_that_was_cut_off_is_truncated(name: str) -> None:
    verifier, example = _make(name)
    assert verifier.verify(example.problem, "", Finish.LENGTH).outcome is Outcome.TRUNCATED


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_same_verdict_twice_and_from_threads(name: str) -> None:
    verifier, example = _make(name)
    expected = verifier.verify(example.problem, example.text, example.finish)
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(verifier.verify, example.problem, example.text, example.finish) for _ in range(8)]
    assert [future.result() for future in futures] == [expected] * 8
