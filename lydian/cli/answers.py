"""`lydian grade`: one answer from flags, or many from standard input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from lydian.cli.settings import named_verifier
from lydian.errors import InputError


def grade(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the verifier.")
    ] = None,
    verifier: Annotated[str, typer.Option(help="Which verifier judges.")] = "math",
    gold: Annotated[str | None, typer.Option(help="The right answer.")] = None,
    prediction: Annotated[str | None, typer.Option(help="What the model wrote.")] = None,
    question: Annotated[str, typer.Option(help="What was asked; some rules depend on it.")] = "",
    answer_only: Annotated[
        bool, typer.Option("--answer-only", help="The prediction is the bare answer (answer_only=true).")
    ] = False,
) -> None:
    """Grade answers from flags or from standard input.

    Reads --gold and --prediction, or JSON lines {"gold", "prediction"} on standard input. Writes one JSON line for
    each, in order: id, outcome, extracted, reason. Exit code 2 if a line could not be graded.
    """
    from lydian.verifiers.grade import grade_lines

    texts = [*(settings or ()), *(["answer_only=true"] if answer_only else [])]
    judge = named_verifier(verifier, texts, command="lydian grade")
    if (gold is None) != (prediction is None):
        raise InputError(
            where="lydian grade",
            given="only --gold" if prediction is None else "only --prediction",
            expected="both, or neither and JSON lines on standard input",
            fix="Give the other one too.",
        )
    if gold is not None:
        lines: Iterable[str] = [json.dumps({"gold": gold, "prediction": prediction, "question": question})]
    else:
        lines = _standard_input()
    is_graded = True
    for row in grade_lines(lines, judge):
        typer.echo(json.dumps(row, ensure_ascii=False))
        is_graded = is_graded and "error" not in row
    if not is_graded:
        raise typer.Exit(2)


def _standard_input() -> Iterable[str]:
    if sys.stdin.isatty():
        raise InputError(
            where="lydian grade",
            given="nothing to grade",
            expected='--gold and --prediction, or JSON lines {"gold", "prediction"} on standard input',
            fix="Write `lydian grade --gold 4 --prediction 'It is 4.'`.",
        )
    # Bytes that are no UTF-8 must not stop the lines after them.
    return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
