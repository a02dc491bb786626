"""Thinking removed by a stated rule, before any verifier reads the reply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Verdict
from lydian.verifiers.verifier import LABEL_FREE, Verifier, is_label_free, verify_all

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
        mark = LABEL_FREE if is_label_free(inner.fingerprint) else ""
        digest = hashlib.sha256(f"{inner.fingerprint}\n{rule}\n{OPENING}\n{CLOSING}".encode()).hexdigest()[:16]
        self.fingerprint = f"{mark}{inner.name}:{digest}"

    def check(self, problem: Problem) -> None:
        self.inner.check(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        return self.verify_many([(problem, text, finish)])[0]

    def verify_many(self, items: Sequence[tuple[Problem, str, Finish]]) -> list[Verdict]:
        """A verdict an item, in order; the inner verifier judges in its own way."""
        replies = [(problem, reply_after_thinking(text), finish) for problem, text, finish in items]
        return [replace(verdict, verifier=self.fingerprint) for verdict in verify_all(self.inner, replies)]


def without_thinking(verifier: Verifier, rule: Thinking) -> Verifier:
    """The verifier itself for `keep`; for `after_think` one that judges `reply_after_thinking(text)` only."""
    return verifier if rule == "keep" else _WithoutThinking(verifier, rule)
