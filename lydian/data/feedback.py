"""Columns that judge a reply: thumbs up or down, scores, verdicts. The layouts of feedback and of judged replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lydian.data.layouts import Row, is_list, layout_table, read_messages, read_prompt, read_reply, read_sharegpt
from lydian.data.problems import Message
from lydian.data.sources import RawRow, short
from lydian.data.verdict import Outcome
from lydian.errors import DataError

_WORDS = {"1": True, "true": True, "0": False, "false": False}
_EXPECTED = "true or false, 1 or 0 (state what other words mean: labels={'up': True, 'down': False})"
_CUT_OFF = ("length", "abort")


def read_label(row: Row, field: str) -> bool:
    """The field as a label: true or false, 1 or 0, or these as text, as a CSV file has them."""
    return _label(row, field, row.get(field))


def relabelled(raw: RawRow, columns: Mapping[str, str], labels: Mapping[str, bool]) -> RawRow:
    """The row with the words of its label columns read by the rule `labels`; other words stay as they are."""

    def meaning(value: object) -> object:
        return labels.get(str(value).strip(), value)

    values = dict(raw.values)
    for column in (columns.get(field, field) for field in ("label", "labels")):
        found = values.get(column)
        values[column] = [meaning(entry) for entry in found] if is_list(found) else meaning(found)
    return replace(raw, values=values)


def spread(raw: RawRow, columns: Sequence[str]) -> Iterator[RawRow]:
    """One row for each of several replies that a row holds side by side.

    columns  each holds an object, or a list of objects, with the columns of one reply; what stands beside them is
             common to all

    The new rows name their column as source: `file/6b_finetuning`, `file/completions/0`. Raises DataError for a column
    that holds neither.
    """
    shared = {name: value for name, value in raw.values.items() if name not in columns}
    for column in columns:
        found = raw.values.get(column)
        entries = list(enumerate(found)) if is_list(found) else [(None, found)]
        for place, entry in entries:
            name = column if place is None else f"{column}/{place}"
            if not isinstance(entry, Mapping):
                raise DataError(
                    where=f"column {name!r}",
                    given=short(entry),
                    expected="an object, or a list of objects, with the columns of one reply each",
                    fix="Correct the row, or leave the column out of `spread`.",
                )
            yield replace(raw, place=f"{raw.place}, {name}", label=f"{raw.label}/{name}", values={**shared, **entry})


def _label(row: Row, field: str, value: object) -> bool:
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    word = value.strip().casefold() if isinstance(value, str) else ""
    if word not in _WORDS:
        raise row.wrong(field, _EXPECTED)
    return _WORDS[word]


# -- feedback ---------------------------------------------------------------------------------------------------------


def _completed(row: Row) -> dict[str, Any]:
    is_text = not is_list(row.get("completion"))
    reply = row.text("completion") if is_text else read_reply(row, "completion")
    return {"messages": read_prompt(row), "reply": reply, "is_desirable": read_label(row, "label")}


def _ended(field: str, read: Callable[[Row], tuple[Message, ...]]) -> Callable[[Row], dict[str, Any]]:
    """Messages of which the assistant's last is the reply."""

    def feedback(row: Row) -> dict[str, Any]:
        *prompt, last = read(row)
        if not prompt or last.role != "assistant":
            raise row.wrong(field, "a message to answer, and the assistant's reply at the end")
        return {"messages": tuple(prompt), "reply": last.content, "is_desirable": read_label(row, "label")}

    return feedback


_ASKED: Mapping[str, object] = {"role": "user", "content": "2 + 3 = ?"}
_ANSWERED: Mapping[str, object] = {"role": "assistant", "content": "5"}
_SHAREGPT = [{"from": "human", "value": "2 + 3 = ?"}, {"from": "gpt", "value": "5"}]

FEEDBACK_LAYOUTS = layout_table(
    ("prompt completion label", "", {"prompt": "2 + 3 = ?", "completion": "5", "label": True}, _completed),
    ("messages label", "", {"messages": [_ASKED, _ANSWERED], "label": True}, _ended("messages", read_messages)),
    ("conversations label", "", {"conversations": _SHAREGPT, "label": True}, _ended("conversations", read_sharegpt)),
)
"""How feedback may be laid out, in the order of the search."""


# -- judged replies ---------------------------------------------------------------------------------------------------


def _number(row: Row, field: str) -> float | None:
    value = row.get(field)
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise row.wrong(field, "a finite number")
    return number


def _labels(row: Row) -> tuple[bool, ...]:
    found = row.get("labels")
    if found is None:
        return (read_label(row, "label"),) if row.has("label") else ()
    if not is_list(found):
        raise row.wrong("labels", "a list of labels, one from each annotator")
    return tuple(_label(row, "labels", entry) for entry in found)


def _text(row: Row, field: str) -> str:
    """A reply, which may be empty: models do that, and a judge has said what it thinks of it."""
    value = row.get(field)
    return "" if isinstance(value, str) and not value.strip() else row.text(field)


def _how_long(row: Row) -> dict[str, Any]:
    num_tokens = _number(row, "num_tokens")
    return {
        "num_tokens": None if num_tokens is None else int(num_tokens),
        "is_whole": row.get("finish") not in _CUT_OFF,
    }


def _judged(row: Row) -> dict[str, Any]:
    is_text = not is_list(row.get("completion"))
    labels, score = _labels(row), _number(row, "score")
    if not labels and score is None:
        raise row.wrong("score", "a score, a label, or a list of labels")
    return {
        "messages": read_prompt(row),
        "reply": _text(row, "completion") if is_text else read_reply(row, "completion"),
        "score": score,
        "labels": labels,
        "judge": row.text("judge") if row.has("judge") else "",
        **_how_long(row),
    }


def _rollout(row: Row) -> dict[str, Any]:
    """A line of a run's rollouts. A verdict FAILED has neither score nor label."""
    outcomes = [outcome.value for outcome in Outcome]
    outcome, sampled = row.get("outcome"), row.get("ids")
    if outcome not in outcomes:
        raise row.wrong("outcome", f"one of {', '.join(outcomes)}")
    return {
        "messages": read_messages(row) if row.has("messages") else read_prompt(row),
        "reply": _text(row, "text"),
        "score": _number(row, "score"),
        "labels": () if outcome == Outcome.FAILED else (outcome == Outcome.CORRECT,),
        "judge": row.text("verifier"),
        **_how_long(row),
        "num_tokens": len(sampled) if is_list(sampled) else None,
    }


_ROLLOUT = {"prompt": "2 + 3 = ?", "text": "5", "outcome": "correct", "score": 1.0, "verifier": "numeric:0"}

JUDGED_LAYOUTS = layout_table(
    (
        "prompt text outcome verifier",
        "messages score finish ids pieces logprobs version sample advantage is_trained extracted parts reason",
        _ROLLOUT,
        _rollout,
    ),
    (
        "prompt completion",
        "score label labels judge finish num_tokens",
        {"prompt": "2 + 3 = ?", "completion": "5", "score": 1.0},
        _judged,
    ),
)
"""How judged replies may be laid out: a run's rollouts, or rows of a prompt, a completion and what was said of it."""
