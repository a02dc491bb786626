"""The contract of a verifier (a problem and a completion's text in, one `Verdict` out), and the table of all of them.

To add one: write a module in this package with a class that satisfies `Verifier`, and register it with a few examples.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import MissingExtraError, RecipeError, VerifierError


@runtime_checkable
class Verifier(Protocol):
    """Judges completions. Deterministic, safe to call from any thread, never raises on what a model wrote.

    name         the registered name
    fingerprint  `name:hash` over name, settings and versions of what it stands on; equal fingerprints judge alike

    A verifier that waits for other processes may also have `num_threads`: how many calls it can usefully serve at once.
    """

    name: str
    fingerprint: str

    def check(self, problem: Problem) -> None:
        """Raises VerifierError if the problem's gold answer cannot be read; called when problems are loaded."""
        ...

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        """Judges one completion."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A completion and the verdict it must get. Each verifier brings its own; the contract test runs them.

    others    further completions of the same problem, for a verifier that judges them together
    metadata  of the problem, for a verifier that reads more than the gold answer

    Example: `Example(gold="5", text="The answer is 5.", outcome=Outcome.CORRECT, extracted="5")`
    """

    gold: str | None
    text: str
    outcome: Outcome
    extracted: str | None = None
    finish: Finish = Finish.STOP
    question: str = ""
    others: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return replace(bare_problem(self.gold, question=self.question), metadata=self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A verifier's name, what makes it (its keyword-only parameters are the settings), and its examples."""

    name: str
    make: Callable[..., Verifier]
    examples: tuple[Example, ...]


LABEL_FREE = "label_free/"
"""What the fingerprints of verifiers that read no gold answer, but the model's agreement with itself, begin with."""


def is_label_free(verifier: str) -> bool:
    """Whether a fingerprint is of a verifier that reads no gold answer: its score is no accuracy.

    >>> is_label_free("label_free/consensus:12ab"), is_label_free("numeric:12ab")
    (True, False)
    """
    return verifier.startswith(LABEL_FREE)


VERIFIERS: dict[str, Registered] = {}
"""All verifiers by name."""


def register(name: str, make: Callable[..., Verifier], *, examples: Sequence[Example]) -> None:
    """Enters a verifier in the table. Raises RecipeError if the name is taken or there is no example."""
    if name in VERIFIERS or not examples:
        raise RecipeError(
            where=f"register({name!r})",
            given="a name that is taken" if name in VERIFIERS else "no examples",
            expected="a new name and at least one example",
            fix="Choose another name, and give a completion with the verdict it must get.",
        )
    VERIFIERS[name] = Registered(name=name, make=make, examples=tuple(examples))


def make_verifier(name: str, **settings: Any) -> Verifier:
    """The verifier of that name with these settings.

    Raises RecipeError for a name or a setting that does not exist, naming the nearest one that does.

    >>> make_verifier("numeric", marker="####").name
    'numeric'
    """
    if name not in VERIFIERS:
        near = difflib.get_close_matches(name, VERIFIERS, n=1)
        raise RecipeError(
            where="verifier.name",
            given=repr(name),
            expected=f"one of {', '.join(sorted(VERIFIERS))}",
            fix=f"Did you mean {near[0]!r}?" if near else "Choose one of these.",
        )
    try:
        return VERIFIERS[name].make(**settings)
    except TypeError as error:
        raise RecipeError(
            where=f"verifier {name!r}",
            given=f"settings {sorted(settings)} ({error})",
            expected="the keyword parameters of its constructor, with the types written there",
            fix=f"See help(lydian.verifiers.VERIFIERS[{name!r}].make).",
        ) from error


def fingerprint(name: str, settings: Mapping[str, Any], packages: Sequence[str] = ()) -> str:
    """`name:hash` over the name, the settings, the rules written in this package and the packages' versions.

    The rules are the text of this package's files, those in folders too, so an edit that could change a verdict changes
    every fingerprint.
    Raises MissingExtraError if a package is not installed.
    """
    versions = {package: _version(package, needed_by=name) for package in packages}
    described = json.dumps([name, settings, rules_digest(Path(__file__).parent), versions], sort_keys=True)
    return f"{name}:{hashlib.sha256(described.encode()).hexdigest()[:16]}"


def _version(package: str, *, needed_by: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            where=f"verifier {needed_by!r}",
            given=f"no package {package}",
            expected="it to be installed",
            fix="pip install 'lydian[math]'",
        ) from error


@cache
def rules_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the Python files in a folder and in the folders in it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def bare_problem(gold: str | None, *, question: str = "") -> Problem:
    """A problem for judging an answer whose question is not at hand."""
    return Problem(id="bare", messages=(Message(role="user", content=question),), answer=gold)


def gold_of(problem: Problem, verifier: Verifier) -> str:
    """The gold answer, stripped. Raises VerifierError where there is none."""
    if problem.answer is None or not problem.answer.strip():
        raise unreadable_gold(problem, verifier, expected="a gold answer")
    return problem.answer.strip()


def unreadable_gold(problem: Problem, verifier: Verifier, *, expected: str) -> VerifierError:
    """The error to raise where a gold answer is not what the verifier reads."""
    return VerifierError(
        where=f"problem {problem.id!r}, verifier {verifier.name!r}",
        given=f"the gold answer {problem.answer!r:.120}",
        expected=expected,
        fix="Correct the problem's answer, or choose a verifier that reads answers of this kind.",
    )


def judged(verifier: Verifier, outcome: Outcome, extracted: str | None = None, reason: str = "") -> Verdict:
    """A verdict that scores 1 for CORRECT, nothing for FAILED and 0 otherwise."""
    score = None if outcome is Outcome.FAILED else float(outcome is Outcome.CORRECT)
    return Verdict(score=score, outcome=outcome, extracted=extracted, reason=reason, verifier=verifier.fingerprint)


def not_found(verifier: Verifier, finish: Finish, reason: str) -> Verdict:
    """The verdict on a completion without an answer: UNPARSED, or TRUNCATED where it was cut off before its end."""
    if finish is Finish.STOP:
        return judged(verifier, Outcome.UNPARSED, reason=reason)
    return judged(verifier, Outcome.TRUNCATED, reason=f"cut off ({finish}): {reason}")


def verify_all(
    verifier: Verifier,
    items: Sequence[tuple[Problem, str, Finish]],
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """One verdict an item, in order; `progress(done, total)` is called from this thread after each.

    A verifier with a method `verify_many(items) -> verdicts` gets all items at once: a model judges them in batches, a
    vote compares the samples of a problem. One with `num_threads` above 1 gets that many calls at once; the others a
    plain loop.
    """
    report = progress or (lambda done, total: None)
    verify_many: Callable[..., list[Verdict]] | None = getattr(verifier, "verify_many", None)
    if verify_many is not None:
        verdicts = verify_many(items)
        report(len(items), len(items))
        return verdicts
    num_threads = min(getattr(verifier, "num_threads", 1), len(items))
    if num_threads <= 1:
        verdicts = []
        for item in items:
            verdicts.append(verifier.verify(*item))
            report(len(verdicts), len(items))
        return verdicts
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(verifier.verify, *item) for item in items]
        for num_done, _ in enumerate(as_completed(futures), start=1):
            report(num_done, len(items))
        return [future.result() for future in futures]
