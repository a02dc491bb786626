"""What a verifier is asked before a run starts: a sound one passes, each kind of broken one does not."""

from __future__ import annotations

import pytest

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.self_test import require_sound, self_test
from lydian.verifiers.verifier import Verifier, judged


def addition(n: int) -> Problem:
    return Problem(id=f"p{n}", messages=(Message(role="user", content=f"Add {n} and {n + 1}."),), answer=str(2 * n + 1))


PROBLEMS = [addition(n) for n in range(10, 30)]


class Rule:
    """Accepts what `is_right` says."""

    name, fingerprint = "rule", "rule:1"

    def __init__(self, is_right) -> None:
        self.is_right = is_right

    def check(self, problem: Problem) -> None:
        """Every problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return judged(self, Outcome.CORRECT if self.is_right(problem, text) else Outcome.WRONG)


@pytest.mark.parametrize("name", ["numeric", "gsm8k", "math"])
def test_sound_verifiers_pass(name: str):
    """All golds read, none of another's: shares 1, 0, 0, 0."""
    findings = {finding.name: finding for finding in self_test(make_verifier(name), PROBLEMS)}
    assert findings["gold against gold"].share == 1.0
    assert findings["gold against another's"].share == findings["empty"].share == 0.0
    assert all(finding.is_passed for finding in findings.values())
    require_sound(make_verifier(name), PROBLEMS, where="stage rl")


def test_letters_pass_too():
    problems = [Problem(id=str(k), messages=PROBLEMS[0].messages, answer="ABCD"[k % 4]) for k in range(8)]
    require_sound(make_verifier("choice"), problems, where="stage rl")


BROKEN: dict[str, tuple[str, Verifier]] = {
    "refuses the gold": ("gold against gold", Rule(lambda problem, text: False)),
    "accepts anything": ("gold against another's", Rule(lambda problem, text: bool(text))),
    "accepts nothing said": ("empty", Rule(lambda problem, text: not text or text.endswith(f" {problem.answer}"))),
    "accepts the prompt": (
        "prompt copied",
        Rule(lambda problem, text: text.endswith(f" {problem.answer}") or text == problem.question),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_each_kind_of_broken_verifier_is_named(fault: str):
    question, verifier = BROKEN[fault]
    failed = [finding.name for finding in self_test(verifier, PROBLEMS) if not finding.is_passed]
    assert failed[0] == question  # one that accepts anything accepts the prompt too
    with pytest.raises(VerifierError, match=question) as error:
        require_sound(verifier, PROBLEMS, where="stage rl")
    assert "self_test = false" in error.value.fix and "p1" in error.value.given


def test_a_format_reward_does_not_depend_on_the_gold_and_is_stopped():
    with pytest.raises(VerifierError, match="another"):
        require_sound(make_verifier("pattern", pattern=r"####\s*\d+"), PROBLEMS, where="stage rl")


def test_problems_without_answers_are_asked_what_can_be_asked():
    problems = [Problem(id="a", messages=PROBLEMS[0].messages)]
    assert [f.name for f in self_test(make_verifier("pattern", pattern="x"), problems)] == ["empty", "prompt copied"]
