"""The reference of objectives and algorithms, read from docstrings: `lydian explain NAME` and docs/objectives.md.

python -m lydian.recipes.reference > docs/objectives.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lydian.recipes.bind import REQUIRED, settings_of
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.catalogue import Entry, catalogue
from lydian.training.learner import required_names

_MARKS = ("Statistics", "Use", "Trap", "Source")
_HEAD = """# Objectives

Every loss, advantage and estimator, from their docstrings; `lydian explain NAME` prints one of them. Symbols: `[n]` one
number a site (a predicted token), `[s]` one a sequence; all logprobs in nats. A loss is one number a site; the learner
minimises Σ weight · loss, and the normaliser alone fills the weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a docstring says, taken apart.

    summary   its first paragraph, with the equation
    symbols   (name, meaning) of each line that documents a parameter
    marked    the texts under Statistics, Use, Trap and Source, where they are
    remarks   what else it says
    example   the doctest
    """

    summary: str
    symbols: tuple[tuple[str, str], ...]
    marked: dict[str, str]
    remarks: str
    example: str


def read(docstring: str) -> Reference:
    """Takes a docstring apart.

    >>> found = read('''Loss, −A log π.\\n\\n    advantage  [n] A\\n\\nUse: always. Source: me.''')
    >>> found.summary, found.symbols, found.marked
    ('Loss, −A log π.', (('advantage', '[n] A'),), {'Use': 'always.', 'Source': 'me.'})
    """
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    symbols: list[tuple[str, str]] = []
    prose: list[str] = []
    example: list[str] = []
    for paragraph in paragraphs[1:]:
        found = _symbols(paragraph)
        if paragraph.startswith(">>>"):
            example.append(paragraph)
        elif found:
            symbols += found
        else:
            prose.append(" ".join(paragraph.split()))
    parts = re.split(rf"(?:^|(?<=\s))({'|'.join(_MARKS)}): ", " ".join(prose))
    marked = {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    return Reference(
        summary=" ".join(paragraphs[0].split()),
        symbols=tuple(symbols),
        marked=marked,
        remarks=parts[0].strip(),
        example="\n\n".join(example),
    )


def _symbols(paragraph: str) -> list[tuple[str, str]]:
    """The lines `name  text` of a paragraph, continuation lines joined; nothing if it is prose."""
    found: list[tuple[str, str]] = []
    for line in paragraph.splitlines():
        begins = re.match(r"(\w+(?:, \w+)*)\s{2,}(\S.*)$", line.strip())
        if begins:
            found.append((begins[1], begins[2]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return []
    return found


def explain_entry(entry: Entry, *, level: int = 3) -> str:
    """One entry as Markdown: equation, symbols, settings, what it needs, when to use it, traps, source, example."""
    reference = read(entry.function.__doc__ or "")
    settings = {setting.name: setting for setting in settings_of(entry.function)}
    used_by = [row.name for row in ALGORITHMS.values() if entry.function in (row.objective, row.advantage)]
    lines = [f"{'#' * level} `{entry.name}`", "", reference.summary, ""]
    for names, meaning in reference.symbols:
        known = [settings[name] for name in names.split(", ") if name in settings]
        shown = [f"{setting.name} = {setting.default}" for setting in known if setting.default is not REQUIRED]
        note = f" (setting, {', '.join(shown)})" if shown else ""
        lines.append(f"- `{names}`{note}: {meaning}")
    lines += [""] * bool(reference.symbols)
    lines += [reference.remarks, ""] * bool(reference.remarks)
    lines += [f"**{mark}** {text}\n" for mark, text in reference.marked.items()]
    if entry.is_loss:
        needs = ", ".join(f"`{name}`" for name in required_names(entry.function))
        lines.append(f"**Needs** {needs}. " + _rows_text(used_by))
    elif used_by:
        lines.append(_rows_text(used_by))
    if reference.example:
        lines += ["", "```python", reference.example, "```"]
    return "\n".join(lines).rstrip() + "\n"


def _rows_text(rows: list[str]) -> str:
    return f"**Algorithms** {', '.join(f'`{row}`' for row in rows)}." if rows else ""


def explain_algorithm(row: Algorithm) -> str:
    """One row of the table as Markdown, with its objective and advantage."""
    entries = [
        catalogue()[f.__name__] for f in (row.objective, row.advantage) if f is not None and f.__name__ in catalogue()
    ]
    facts = {
        "data": row.data,
        "objective": _function_name(row.objective),
        "source": row.source,
        "defaults": row.defaults,
    }
    lines = [f"# `{row.name}`", "", row.summary, ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    return "\n".join(lines) + "\n\n" + "\n".join(explain_entry(entry) for entry in entries)


def explain_name(name: str) -> str | None:
    """What there is to say of an algorithm or a function of `lydian.objectives`; None if neither has this name."""
    row, entry = ALGORITHMS.get(name), catalogue().get(name)
    if row is not None:
        return explain_algorithm(row)
    return None if entry is None else explain_entry(entry, level=1)


def _function_name(function: Callable[..., Any] | None) -> str:
    return "" if function is None else f"`{function.__name__}`"


def algorithms_table() -> str:
    """The table of algorithms as Markdown."""
    lines = ["| algorithm | data | objective | advantage | normaliser | what it does | source |", "|---" * 7 + "|"]
    for row in ALGORITHMS.values():
        advantage = _function_name(row.advantage)
        normaliser = row.defaults.get("normaliser", "token_mean")
        cells = (
            f"`{row.name}`",
            row.data,
            _function_name(row.objective),
            advantage,
            normaliser,
            row.summary,
            row.source,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def document() -> str:
    """docs/objectives.md: the table of algorithms, then every entry by module."""
    parts = [_HEAD, "## The table of algorithms\n", algorithms_table() + "\n"]
    for module, entries in groupby(catalogue().values(), key=lambda entry: entry.module):
        text = inspect.getdoc(inspect.getmodule((members := list(entries))[0].function)) or ""
        parts += [f"## {module}\n", text + "\n", *(explain_entry(entry) for entry in members)]
    return "\n".join(parts)


if __name__ == "__main__":
    print(document(), end="")
