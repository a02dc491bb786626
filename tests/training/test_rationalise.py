"""STaR: who gets a hint, how it is judged, what is kept, and that the hint is gone before training. All by script."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from lydian.data.problems import Problem
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.objectives.advantage import group_mean
from lydian.rollout.engine import Request
from lydian.rollout.scripted import ScriptedEngine
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Rollouts
from lydian.training.credit import Credit, Imitation, PolicyGradient
from lydian.training.rationalise import Rationalised, with_rationales
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import Verifier
from tests.training.toys import STOP, Letters, ids_of, problem

HINT = "z{answer}"
"""Behind question `fg` with answer `k`: `fgzk`."""


class Listening(ScriptedEngine):
    """Remembers what it was asked."""

    def __init__(self, script: dict[str, Seq[str]]) -> None:
        ids = {name: [(*ids_of(text), STOP) for text in texts] for name, texts in script.items()}
        super().__init__(ids, stop_tokens=Letters.stop_tokens)
        self.asked: list[Request] = []

    def generate(self, requests, progress=None):
        self.asked += requests
        return super().generate(requests, progress)


class Unsure:
    """Judges nothing that holds an `x`; the rest is right if it is the answer."""

    name, fingerprint = "unsure", "unsure:1"

    def check(self, problem: Problem) -> None:
        """All problems will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        outcome = Outcome.FAILED if "x" in text else Outcome.CORRECT if text == problem.answer else Outcome.WRONG
        score = None if outcome is Outcome.FAILED else float(outcome is Outcome.CORRECT)
        return Verdict(score=score, outcome=outcome, extracted=text, verifier=self.fingerprint)


def rollouts(
    script: dict[str, Seq[str]],
    *,
    answers: dict[str, str | None],
    num_samples: int = 2,
    keep: int = 4,
    verifier: Verifier | None = None,
    credit: Credit | None = None,
) -> Rollouts:
    return Rollouts(
        engine=Listening(script),
        template=Letters(),
        verifier=verifier or make_verifier("exact"),
        problems=[problem(question, answer) for question, answer in answers.items()],
        sampling=Sampling(max_tokens=4),
        num_samples=num_samples,
        problems_per_round=0,
        credit=credit or Imitation(keep_per_problem=keep),
        seed=0,
    )


def star(script: dict[str, Seq[str]], *, words: tuple[str, ...] = ("hint",), **settings) -> Rationalised:
    return Rationalised(rollouts=rollouts(script, **settings), hint=HINT, words=words)


def trained(items: Seq[Sequence]) -> dict[str, str]:
    """What each sequence is trained on, prompt and reply, by id."""
    return {s.id: Letters().decode(s.tokens) for s in items}


def test_only_problems_that_no_sample_solved_get_a_hint_and_are_trained_without_it():
    """`f` is solved by its second sample. `g` is not; with the hint `gzl` its first sample is right: what is trained is
    `g` → `l`, in the ids that were sampled, and no token of the hint. Of the two sequences one came with a hint; of
    two samples with a hint one was right, of four without one."""
    source = star({"f": ["b", "k"], "g": ["a", "b"], "g+hint": ["l", "m"]}, answers={"f": "k", "g": "l"})
    collected = source.collect(0)
    assert trained(collected.items) == {"f/1": "fk", "g+hint/0": "gl"}
    plain, rationale = sorted(collected.items, key=lambda s: s.id)
    assert rationale.tokens == (*ids_of("g"), *ids_of("l"), STOP)
    assert rationale.trained == (False, True, True)
    assert rationale.temperature == 1.0 and rationale.streams == {} == plain.streams
    hinted = source.rollouts.engine.asked[-1]
    assert (hinted.problem_id, hinted.prompt) == ("g+hint", ids_of("gzl"))
    assert collected.metrics["accuracy"] == 0.25
    assert {name: collected.metrics[name] for name in ("hinted", "hinted_accuracy", "rationalised")} == {
        "hinted": 1.0,
        "hinted_accuracy": 0.5,
        "rationalised": 0.5,
    }
    assert collected.metrics["hint_mentioned"] == 0.0


def test_samples_with_a_hint_are_among_the_rounds_samples_with_their_prompt():
    """Problems of their own, so that a run's rollouts show what was asked."""
    source = star({"g": ["a", "b"], "g+hint": ["l", "m"]}, answers={"g": "l"})
    plain, hinted = source.collect(0).groups
    assert (plain.problem.id, plain.problem.question) == ("g", "g")
    assert (hinted.problem.id, hinted.problem.question) == ("g+hint", "gzl")
    assert [member.verdict.is_correct for member in hinted.members] == [True, False]


def test_completions_with_a_hint_are_judged_as_answers_to_the_problem_itself():
    class Question(Unsure):
        """Wants a reply that is not in the question: with the hint in the question none would do."""

        def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
            is_new = text not in problem.question
            outcome = Outcome.CORRECT if is_new and text == problem.answer else Outcome.WRONG
            score = float(outcome is Outcome.CORRECT)
            return Verdict(score=score, outcome=outcome, extracted=text, verifier=self.fingerprint)

    source = star({"g": ["a", "b"], "g+hint": ["l", "m"]}, answers={"g": "l"}, verifier=Question())
    assert trained(source.collect(0).items) == {"g+hint/0": "gl"}


def test_at_most_so_many_distinct_completions_a_problem():
    """Two of three different correct ones; copies are one. The verifier takes all that begin as the answer does."""
    source = star(
        {"g": ["a"] * 5, "g+hint": ["la", "la", "lb", "a", "lc"]},
        answers={"g": "l"},
        num_samples=5,
        keep=2,
        verifier=make_verifier("pattern", pattern="^l"),
    )
    assert trained(source.collect(0).items) == {"g+hint/0": "gla", "g+hint/2": "glb"}


def test_completions_that_speak_of_the_hint_are_not_kept():
    """The filled hint `zl` itself, and words that begin as one of `words` does, here `qu`; not words that hold it."""
    source = star(
        {"g": ["a"] * 4, "g+hint": ["lazlb", "quabl", "lqua", "l"]},
        answers={"g": "l"},
        num_samples=4,
        words=("QU",),
        verifier=make_verifier("pattern", pattern="l"),
    )
    collected = source.collect(0)
    assert trained(collected.items) == {"g+hint/2": "glqua", "g+hint/3": "gl"}
    assert collected.metrics["hint_mentioned"] == 0.5


def test_no_hint_without_an_answer_or_a_verdict():
    """`f` has no gold answer; no sample of `g` could be judged; `h` is unsolved although one of its samples could not.
    Verdicts that failed do not count in the accuracy with a hint: one of one."""
    source = star(
        {"f": ["a", "b"], "g": ["x", "x"], "h": ["a", "x"], "h+hint": ["k", "x"]},
        answers={"f": None, "g": "k", "h": "k"},
        verifier=Unsure(),
    )
    collected = source.collect(0)
    assert trained(collected.items) == {"h+hint/0": "hk"}
    assert collected.metrics["hinted"] == 1.0 and collected.metrics["hinted_accuracy"] == 1.0


def test_shares_of_nothing_are_left_out():
    """All solved: no hint was given. Nothing solved, with or without: nothing is trained."""
    solved = star({"f": ["k", "k"]}, answers={"f": "k"}).collect(0)
    assert solved.metrics["hinted"] == 0.0 and solved.metrics["rationalised"] == 0.0
    assert not {"hinted_accuracy", "hint_mentioned"} & set(solved.metrics)
    lost = star({"f": ["a", "b"], "f+hint": ["a", "b"]}, answers={"f": "k"}).collect(0)
    assert lost.items == [] and lost.metrics["hinted_accuracy"] == 0.0
    assert not {"rationalised", "hint_mentioned"} & set(lost.metrics)


def test_rounds_draw_their_hinted_samples_from_seeds_of_their_own():
    source = star({"g": ["a", "b"], "g+hint": ["l", "m"]}, answers={"g": "l"})
    for round in (0, 1, 0):
        source.collect(round)
    seeds = [request.sampling.seed for request in source.rollouts.engine.asked]
    assert seeds[:2] == seeds[4:] and len(set(seeds)) == 4


def test_a_hint_for_what_is_not_imitated_is_refused():
    graded = rollouts({}, answers={"g": "l"}, credit=PolicyGradient(advantage=group_mean))
    with pytest.raises(RecipeError, match="hint"):
        with_rationales(graded, StageSettings(hint=HINT))
    assert with_rationales(graded, StageSettings()) is graded


@pytest.mark.parametrize("hint", ["the answer", "{answer} or {answer}"])
def test_a_hint_has_the_answer_in_it_once(hint: str):
    with pytest.raises(RecipeError, match="hint"):
        StageSettings(hint=hint)


def test_star_gives_hints_and_restarts_and_rft_keeps_all():
    """Rejection-sampling fine-tuning keeps every distinct correct completion: 6 different ones of 7."""
    defaults = ALGORITHMS["star"].defaults
    source = with_rationales(
        rollouts({}, answers={"g": "l"}), StageSettings(hint=defaults["hint"], restart=defaults["restart"])
    )
    assert isinstance(source, Rationalised) and defaults["restart"] is True
    rft = ALGORITHMS["rft"]
    keep = rft.defaults["keep_per_problem"]
    credit = make_credit(rft, StageSettings(keep_per_problem=keep), max_tokens=4)
    texts = ["la", "lb", "lc", "ld", "le", "lf", "la"]
    found = rollouts(
        {"g": texts},
        answers={"g": "l"},
        num_samples=7,
        credit=credit,
        verifier=make_verifier("pattern", pattern="^l"),
    )
    assert len(found.collect(0).items) == 6
