"""Thinking removed by a stated rule, before any verifier reads the reply."""

from __future__ import annotations

import hashlib
from typing import Literal

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Verdict
from lydian.verifiers.verifier import Verifier

Thinking = Literal["keep", "after_think"]
OPENING, CLOSING = "<think>", "</think>"


def reply_after_thinking(text: str) -> str:
    """What follows the last </think>; nothing if thinking was opened and never closed; else the whole text.

    >>> reply_after_thinking("<think>2 + 2 is 5? No, 4.</think>It is 4."), reply_after_thinking("<think>So 4")
    ('It is 4.', '')
    """
    _, closing, rest = text.rpartition(CLOSING)
    if closing:
        return rest
    return "" if OPENING in text else text


class _WithoutThinking:
    """A verifier that sees only what follows the thinking, and signs so."""

    def __init__(self, inner: Verifier, rule: Thinking) -> None:
        self.inner = inner
        self.name = inner.name
        digest = hashlib.sha256(f"{inner.fingerprint}\n{rule}\n{OPENING}\n{CLOSING}".encode()).hexdigest()[:16]
        self.fingerprint = f"{inner.name}:{digest}"
        self.num_threads = getattr(inner, "num_threads", 1)

    def check(self, problem: Problem) -> None:
        self.inner.check(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        verdict = self.inner.verify(problem, reply_after_thinking(text), finish)
        return Verdict(
            score=verdict.score,
            outcome=verdict.outcome,
            extracted=verdict.extracted,
            parts=verdict.parts,
            reason=verdict.reason,
            verifier=self.fingerprint,
        )


def without_thinking(verifier: Verifier, rule: Thinking) -> Verifier:
    """The verifier itself for `keep`; for `after_think` one that judges `reply_after_thinking(text)` only."""
    return verifier if rule == "keep" else _WithoutThinking(verifier, rule)
