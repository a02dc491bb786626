"""Does a verifier do on these problems what a verifier must? Asked before a run starts: the reward is what is learned.

gold against gold       a completion that states the problem's own answer: all CORRECT
gold against another's  a completion that states another problem's answer: (nearly) none
empty                   the empty completion: none
prompt copied           the problem's own text as the completion: (nearly) none
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.errors import VerifierError
from lydian.verifiers.verifier import Verifier, is_label_free, verify_all

NEARLY_NONE = 0.1
"""Share of accidental matches that is borne: a question may hold its answer as its last number."""

PHRASINGS: tuple[Callable[[str], str], ...] = (
    lambda gold: f"#### {gold}",
    lambda gold: f"\\boxed{{{gold}}}",
    lambda gold: f"The answer is {gold}.",
    lambda gold: f"<think>\n…\n</think> <answer>{gold}</answer>",
    lambda gold: f"<think>\n…\n</think> <answer>\\boxed{{{gold}}}</answer>",
    lambda gold: f" …</think> <answer>{gold}</answer>",
    lambda gold: f"```python\n{gold}\n```",
    lambda gold: gold,
)
"""Ways to state an answer; a verifier must read all answers in at least one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One question to a verifier.

    name       gold against gold, …
    share      of the completions that were judged CORRECT
    most, least  bounds that the share must keep
    examples   ids of problems that went wrong, at most three
    """

    name: str
    share: float
    least: float
    most: float
    examples: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        """Whether the share lies within its bounds."""
        return self.least <= self.share <= self.most


def self_test(verifier: Verifier, problems: Sequence[Problem], *, num_problems: int = 32) -> list[Finding]:
    """Asks a verifier the questions above on a seeded sample of the problems.

    Questions about gold answers are left out where problems have none, or the verifier reads none. An answer may
    stand in the problem's metadata as `canonical_solution` (code).
    """
    sample = random.Random(0).sample(list(problems), min(num_problems, len(problems)))
    findings = []
    with_gold = [problem for problem in sample if _gold(problem) and not is_label_free(verifier.fingerprint)]
    if with_gold:
        phrase, own = _best_phrasing(verifier, with_gold)
        findings.append(own)
        findings += _against_others(verifier, with_gold, phrase)
    findings.append(_asked("empty", verifier, [(problem, "") for problem in sample], most=0.0))
    copies = [(problem, problem.question) for problem in sample]
    findings.append(_asked("prompt copied", verifier, copies, most=NEARLY_NONE))
    return findings


def require_sound(verifier: Verifier, problems: Sequence[Problem], *, where: str) -> None:
    """Raises VerifierError naming the first question that a verifier fails on the problems."""
    for finding in self_test(verifier, problems):
        if not finding.is_passed:
            bound = f"at least {finding.least:.0%}" if finding.share < finding.least else f"at most {finding.most:.0%}"
            raise VerifierError(
                where=f"{where}, verifier {verifier.name!r}, {finding.name}",
                given=f"{finding.share:.0%} judged correct, e.g. {', '.join(finding.examples)}",
                expected=bound,
                fix="Look at these problems with `lydian grade`; choose a verifier that fits the answers, or set "
                "self_test = false for a reward that is meant not to depend on them.",
            )


def _gold(problem: Problem) -> str:
    return str(problem.metadata.get("canonical_solution") or problem.answer or "").strip()


def _best_phrasing(verifier: Verifier, problems: Sequence[Problem]) -> tuple[Callable[[str], str], Finding]:
    """The way to state an answer that the verifier reads most often, and how often that is."""
    best: tuple[Callable[[str], str], Finding] | None = None
    for phrase in PHRASINGS:
        stated = [(problem, phrase(_gold(problem))) for problem in problems]
        found = _asked("gold against gold", verifier, stated, least=1.0)
        if best is None or found.share > best[1].share:
            best = (phrase, found)
        if found.share == 1.0:
            break
    assert best is not None
    return best


def _against_others(verifier: Verifier, problems: Sequence[Problem], phrase: Callable[[str], str]) -> list[Finding]:
    """Every problem with the next problem's answer that is not its own; nothing if all answers are one."""
    crossed = []
    for place, problem in enumerate(problems):
        following = (*problems[place + 1 :], *problems[:place])
        other = next((_gold(p) for p in following if _gold(p) != _gold(problem)), None)
        if other is not None:
            crossed.append((problem, phrase(other)))
    return [_asked("gold against another's", verifier, crossed, most=NEARLY_NONE)] if crossed else []


def _asked(
    name: str, verifier: Verifier, items: Sequence[tuple[Problem, str]], *, least: float = 0.0, most: float = 1.0
) -> Finding:
    verdicts = verify_all(verifier, [(problem, text, Finish.STOP) for problem, text in items])
    is_right = [verdict.is_correct for verdict in verdicts]
    wrong = [p.id for (p, _), right in zip(items, is_right, strict=True) if right != (least > 0)]
    share = sum(is_right) / len(is_right) if is_right else 0.0
    return Finding(name=name, share=share, least=least, most=most, examples=tuple(wrong[:3]))
