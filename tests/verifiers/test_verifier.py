import threading
from pathlib import Path

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError
from lydian.verifiers import VERIFIERS, Example, make_verifier, register, verifier, verify_all
from lydian.verifiers.verifier import bare_problem, fingerprint, judged, rules_digest


class Waiting:
    """Lets a call through only when `num_threads` calls are waiting: a plain loop would hang."""

    name, fingerprint = "waiting", "waiting:0"

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._barrier = threading.Barrier(num_threads)

    def check(self, problem) -> None: ...

    def verify(self, problem, text, finish):
        self._barrier.wait(timeout=10)
        return judged(self, Outcome.WRONG, text)


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'numeric'"):
        make_verifier("numerik")


def test_an_unknown_setting_is_a_recipe_error() -> None:
    with pytest.raises(RecipeError, match="markr"):
        make_verifier("numeric", markr="####")


def test_a_name_cannot_be_taken_twice_and_examples_are_required() -> None:
    example = Example(gold="4", text="4", outcome=Outcome.CORRECT)
    with pytest.raises(RecipeError):
        register("numeric", VERIFIERS["numeric"].make, examples=(example,))
    with pytest.raises(RecipeError):
        register("something_new", VERIFIERS["numeric"].make, examples=())
    assert "something_new" not in VERIFIERS


def test_the_fingerprint_depends_on_name_settings_and_packages() -> None:
    prints = [
        fingerprint("a", {"x": 1}),
        fingerprint("b", {"x": 1}),
        fingerprint("a", {"x": 2}),
        fingerprint("a", {"x": 1}, ["sympy"]),
    ]
    assert len(set(prints)) == 4
    assert fingerprint("a", {"x": 1, "y": 2}) == fingerprint("a", {"y": 2, "x": 1})


def test_an_edit_in_any_folder_of_the_rules_changes_the_fingerprint(tmp_path) -> None:
    """Content, name and place count; a file that is no Python does not. The package's own folders are read."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("1")
    rule = tmp_path / "inner" / "b.py"
    digests = []
    for text in ("1", "2"):
        rule.write_text(text)
        digests.append(rules_digest.__wrapped__(tmp_path))
    rule.rename(tmp_path / "b.py")
    digests.append(rules_digest.__wrapped__(tmp_path))
    (tmp_path / "notes.txt").write_text("x")
    assert len(set(digests)) == 3 and rules_digest.__wrapped__(tmp_path) == digests[-1]
    assert (Path(verifier.__file__).parent / "math" / "equality.py").is_file()


@pytest.mark.parametrize("verifier", [make_verifier("numeric"), Waiting(4)])
def test_verdicts_come_in_order_with_progress(verifier) -> None:
    items = [(bare_problem("0"), str(i), Finish.STOP) for i in range(8)]
    seen: list[tuple[int, int]] = []
    verdicts = verify_all(verifier, items, progress=lambda done, total: seen.append((done, total)))
    assert [verdict.extracted for verdict in verdicts] == [str(i) for i in range(8)]
    assert seen == [(i, 8) for i in range(1, 9)]


def test_nothing_to_verify_is_nothing() -> None:
    assert verify_all(make_verifier("math"), []) == []
