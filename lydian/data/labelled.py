"""Replies with a label for each step (`Stepwise`), texts with a class (`Labelled`), and how files lay them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lydian.data.layouts import Row, is_list, layout_table, read_messages, read_prompt
from lydian.data.problems import Message
from lydian.errors import DataError

_WORDS: Mapping[object, float] = {"true": 1.0, "+": 1.0, "1": 1.0, "false": 0.0, "-": 0.0, "0": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepwise:
    """A prompt and a reply in steps, with a label for each: what a process reward model learns from.

    steps   the reply's parts, each with the blanks that follow it: joined they are the reply
    labels  one a step, from 0 (wrong) to 1 (right); None where nobody judged it

    Example: `Stepwise(id="s1", messages=(Message(role="user", content="2 + 3 - 1 = ?"),),
    steps=("2 + 3 = 6, ", "6 - 1 = 5"), labels=(0.0, 0.0))`
    """

    id: str
    messages: tuple[Message, ...]
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"steps of {self.id!r}"
        if not self.messages or self.messages[-1].role == "assistant":
            raise _malformed(where, "no question", "messages that end with what is asked")
        if len(self.steps) != len(self.labels) or not all(step.strip() for step in self.steps):
            raise _malformed(
                where, f"{len(self.steps)} steps, {len(self.labels)} labels", "a label for each, none blank"
            )
        known = [label for label in self.labels if label is not None]
        if not known or not all(0 <= label <= 1 for label in known):
            raise _malformed(where, f"labels {list(self.labels)!r:.80}", "numbers from 0 to 1, at least one")

    @property
    def reply(self) -> str:
        """The steps, joined."""
        return "".join(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A text and its class: what a classifier learns from.

    messages  the text; it may end with anybody's message
    label     name of the class

    Example: `Labelled(id="l1", messages=(Message(role="user", content="Well done!"),), label="praise")`
    """

    id: str
    messages: tuple[Message, ...]
    label: str
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.messages or not self.label.strip():
            raise _malformed(f"label of {self.id!r}", repr(self.label), "messages and the name of their class")


def classes_of(items: Iterable[Labelled]) -> tuple[str, ...]:
    """The names of the classes, sorted: their places are the numbers that a classifier learns.

    Raises DataError for fewer than two.
    """
    classes = tuple(sorted({item.label for item in items}))
    if len(classes) < 2:
        raise _malformed("labels", f"the classes {list(classes)}", "at least two")
    return classes


def _stepwise(row: Row) -> dict[str, Any]:
    """Steps as a list, each without the line break that follows it unless it ends in a blank itself."""
    field_name = "steps" if row.has("steps") else "completions"
    steps = row.get(field_name)
    if not is_list(steps) or not steps or not all(isinstance(step, str) and step.strip() for step in steps):
        raise row.wrong(field_name, "a list of texts")
    joined = tuple(step if step[-1].isspace() else f"{step}\n" for step in steps[:-1])
    labels = row.get("labels")
    if not is_list(labels) or len(labels) != len(steps):
        raise row.wrong("labels", f"a list of {len(steps)} labels, one a step")
    return {
        "messages": read_prompt(row),
        "steps": (*joined, steps[-1]),
        "labels": tuple(_step_label(row, label) for label in labels),
    }


def _step_label(row: Row, label: object) -> float | None:
    """A number from 0 to 1, true or false, + or -; null where there is none. Nothing else counts as either."""
    if label is None:
        return None
    if isinstance(label, bool | int | float) and 0 <= label <= 1:
        return float(label)
    word = label.strip().lower() if isinstance(label, str) else None
    if word not in _WORDS:
        raise row.wrong("labels", "labels that are true or false, + or -, numbers from 0 to 1, or null")
    return _WORDS[word]


def _class(row: Row) -> str:
    label = row.get("label")
    return str(label).lower() if isinstance(label, bool) else row.answer("label")


def _labelled(row: Row) -> dict[str, Any]:
    if row.has("messages"):
        return {"messages": read_messages(row), "label": _class(row)}
    name = "text" if row.has("text") else "prompt"
    return {"messages": (Message(role="user", content=row.text(name)),), "label": _class(row)}


_STEPS = {"prompt": "2 + 3 - 1 = ?", "steps": ["2 + 3 = 5", "5 - 1 = 3"], "labels": [True, False]}
_USER = {"role": "user", "content": "Well done!"}

STEPWISE_LAYOUTS = layout_table(
    ("prompt steps labels", "", _STEPS, _stepwise),
    (
        "prompt completions labels",
        "",
        {"prompt": "2 + 3 - 1 = ?", "completions": ["2 + 3 = 5", "5 - 1 = 3"], "labels": [True, False]},
        _stepwise,
    ),
)
"""How replies with step labels may be laid out, in the order of the search."""

LABELLED_LAYOUTS = layout_table(
    ("messages label", "", {"messages": [_USER], "label": "praise"}, _labelled),
    ("text label", "", {"text": "Well done!", "label": "praise"}, _labelled),
    ("prompt label", "", {"prompt": "Well done!", "label": "praise"}, _labelled),
)
"""How texts with a class may be laid out, in the order of the search."""


def _malformed(where: str, given: str, expected: str) -> DataError:
    return DataError(
        where=where, given=given, expected=expected, fix="Correct the row, or load with on_bad_row='skip'."
    )
