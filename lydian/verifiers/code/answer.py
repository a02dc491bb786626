"""Which program a completion gives.

1. Only what follows the last `</think>` counts; unfinished reasoning gives no program.
2. Of the fenced code blocks those marked as Python count, or those without a mark where none is; the last one that
   defines the function asked for, else the last one. A block without its end counts up to the end of the text.
3. Without a block, a text whose first line is indented continues the prompt, as in HumanEval: it ends before the first
   line that is neither blank nor indented nor a closing bracket. Any other text is the program itself.
4. A program that defines the function asked for is run after what stands before that function in the prompt (imports,
   helpers); an indented one is run after the whole prompt.
5. A completion that was cut off gives a program only in a closed block, or where rule 3 found the body's end.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from lydian.data.trajectory import Finish
from lydian.verifiers.code.suite import Suite
from lydian.verifiers.reading import NoAnswer

MAX_CHARACTERS = 200_000
"""Longer completions are not read."""

_PYTHON = ("python", "python3", "py", "py3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program found in a completion.

    code     as the model wrote it
    source   what is run
    is_bare  whether nothing marked it as code
    """

    code: str
    source: str
    is_bare: bool


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    code: str
    is_closed: bool


def read_program(text: str, finish: Finish, suite: Suite) -> Program:
    """The program in a completion. Raises NoAnswer."""
    _, closed, after = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise NoAnswer("the reasoning does not end")
    if len(after) > MAX_CHARACTERS:
        raise NoAnswer(f"more than {MAX_CHARACTERS} characters")
    is_cut_off = finish is not Finish.STOP
    block = _chosen(_blocks(after), suite.entry_point)
    if block is not None:
        if is_cut_off and not block.is_closed:
            raise NoAnswer("the code block does not end")
        code, is_bare = block.code, False
    else:
        code, is_bare = _bare(after, suite, is_cut_off), True
    if not code.strip():
        raise NoAnswer("no code")
    is_body = bool(suite.prompt) and _is_indented(code)
    return Program(code=code.strip("\n"), source=_source(code, suite), is_bare=is_bare and not is_body)


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    language, indent = "", ""
    lines: list[str] | None = None
    for line in text.split("\n"):
        stripped = line.lstrip()
        if not stripped.startswith("```"):
            if lines is not None:
                lines.append(line.removeprefix(indent))
        elif lines is None:
            words = stripped.strip("`").split()
            language, indent, lines = (words[0].lower() if words else ""), line[: len(line) - len(stripped)], []
        else:
            blocks.append(_Block(language, "\n".join(lines), True))
            lines = None
    if lines is not None:
        blocks.append(_Block(language, "\n".join(lines), False))
    return blocks


def _chosen(blocks: list[_Block], entry_point: str) -> _Block | None:
    marked = [block for block in blocks if block.language in _PYTHON]
    candidates = marked or [block for block in blocks if not block.language]
    for block in reversed(candidates):
        if entry_point and _defines(block.code, entry_point):
            return block
    return candidates[-1] if candidates else None


def _bare(text: str, suite: Suite, is_cut_off: bool) -> str:
    lines = text.split("\n")
    if suite.prompt and _is_indented(text):
        for number, line in enumerate(lines):
            if line.strip() and line[0] not in " \t)]}":
                return "\n".join(lines[:number])
    if is_cut_off:
        raise NoAnswer("the program does not end")
    return text


def _is_indented(code: str) -> bool:
    return next((line[0] in " \t" for line in code.split("\n") if line.strip()), False)


def _defines(code: str, name: str) -> bool:
    return re.search(rf"^(?:async +)?def +{name}\b|^{name} *=|^class +Solution\b", code, re.MULTILINE) is not None


def _source(code: str, suite: Suite) -> str:
    if not suite.entry_point:
        return code
    if _is_indented(code):
        return suite.prompt + "\n" + code if suite.prompt else textwrap.dedent(code)
    return code if "from __future__" in code else suite.preamble + "\n" + code
