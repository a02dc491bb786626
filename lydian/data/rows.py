"""From files and tables to problems, conversations, preferences, feedback, judged replies: `load_problems`, …"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from lydian.data.feedback import FEEDBACK_LAYOUTS, JUDGED_LAYOUTS, relabelled, spread
from lydian.data.judged import JudgedReply
from lydian.data.labelled import LABELLED_LAYOUTS, STEPWISE_LAYOUTS, Labelled, Stepwise
from lydian.data.layouts import (
    CONVERSATION_LAYOUTS,
    PREFERENCE_LAYOUTS,
    PROBLEM_LAYOUTS,
    Layout,
    Row,
    known_fields,
    recognise,
)
from lydian.data.problems import Conversation, Feedback, Message, Preference, Problem
from lydian.data.sources import RawRow, open_source
from lydian.errors import DataError, InputError, LydianError

OnBadRow = Literal["stop", "skip"]
Item = TypeVar("Item", Problem, Conversation, Preference, Feedback, JudgedReply, Stepwise, Labelled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[Item]):
    """What a source held.

    items    in the order of the source
    skipped  (place, reason) of each row that was left out; empty unless loaded with on_bad_row="skip"
    digest   SHA-256: of the file's bytes; of the files' digests joined by line breaks; of the rows as JSON
    licence  where the source states one, else None
    source   path, paths, hub id or name
    """

    items: tuple[Item, ...]
    skipped: tuple[tuple[str, str], ...]
    digest: str
    licence: str | None
    source: str


def load_problems(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Problem]:
    r"""Reads questions with their gold answers.

    source      a path or several (.jsonl, .json, .csv, .tsv, each also .gz; .parquet), a `datasets` object, an
                iterable of mappings, or a hub id (`owner/name`, `owner/name:configuration`)
    columns     field → column, for other names: {"question": "my_column"}
    on_bad_row  "stop" raises at the first malformed row; "skip" leaves it out and lists it in `skipped`
    split       recorded in each item; picks the split of a hub data set
    name        recorded as each item's source, and begins the ids made where there is no `id`; by default the stem

    The columns are recognised by the first row that has one of these sets, in this order: messages (answer);
    conversations (answer); prompt (answer or completion); question, choices, answer; question, A, B, …, answer (a CSV
    file without header is read so); question, answer (the gold is what follows ####); problem, answer; input, target;
    Body, Question, Answer. Other columns go to `metadata`.

    Raises DataError for a malformed row (naming file:line, column, what was found and expected, and a right row), for
    an id that occurs twice, and for a source without a good row; MissingExtraError for a hub id without `datasets`.

    >>> row = {"question": "How much is 480 + 600?", "answer": "480 + 600 = <<480+600=1080>>1080\n#### 1,080"}
    >>> load_problems([row], name="sums").items[0].answer
    '1080'
    """
    return _load(Problem, PROBLEM_LAYOUTS, source, columns or {}, on_bad_row, split, name)


def load_conversations(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Conversation]:
    r"""Reads conversations to imitate; parameters and errors are those of `load_problems`.

    The sets of columns, in order: messages; conversations (from, value); prompt, completion; question, choices, answer;
    question, A, B, …, answer; question, answer (GSM8K's worked solution loses its <<48/2=24>> and keeps its #### line);
    problem, solution; input, target; Body, Question, Answer; text (alone, to go on from nothing).

    >>> row = {"question": "How much is 2 + 3?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}
    >>> load_conversations([row]).items[0].messages[-1].content
    '2 + 3 = 5\n#### 5'
    """
    return _load(Conversation, CONVERSATION_LAYOUTS, source, columns or {}, on_bad_row, split, name)


def load_preferences(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Preference]:
    """Reads prompts with a chosen and a rejected reply; parameters and errors are those of `load_problems`.

    `chosen` and `rejected` are texts after a `prompt` (a text or messages), or message lists; the messages that both
    lists begin with are then the prompt. Common characters never make a prompt.

    >>> ask = {"role": "user", "content": "Hi"}
    >>> replies = [[ask, {"role": "assistant", "content": text}] for text in ("Hello!", "Go away.")]
    >>> load_preferences([{"chosen": replies[0], "rejected": replies[1]}]).items[0].chosen
    'Hello!'
    """
    return _load(Preference, PREFERENCE_LAYOUTS, source, columns or {}, on_bad_row, split, name)


def load_feedback(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, bool] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Feedback]:
    """Reads replies with a thumb up or down; the other parameters and errors are those of `load_problems`.

    labels  what other words of the column `label` mean: {"up": True, "down": False}; true, false, 1 and 0 need no rule

    The sets of columns, in order: prompt, completion, label; messages, label; conversations (from, value), label: the
    last message is the reply.

    >>> row = {"prompt": "2 + 3 = ?", "completion": "6", "label": "down"}
    >>> load_feedback([row], labels={"up": True, "down": False}).items[0].is_desirable
    False
    """
    return _load(Feedback, FEEDBACK_LAYOUTS, source, columns or {}, on_bad_row, split, name, labels=labels)


def load_judged(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Mapping[str, bool] | None = None,
    spread: Sequence[str] = (),
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[JudgedReply]:
    """Reads replies with a score, a label, or several labels: what `lydian.data.pairs` builds from.

    labels  as in `load_feedback`
    spread  columns that hold one reply each, as an object with its columns, or several as a list of objects

    The sets of columns, in order: those of a run's rollouts; prompt, completion and score, label or labels, with judge,
    finish ("length" or "abort": cut off) and num_tokens where they are known. A row is one reply, so that ids are made
    from its place; a column `id` goes to `metadata`. The other parameters and errors are those of `load_problems`.

    >>> row = {"question": "2 + 3 = ?", "a": {"text": "5", "ok": True}, "b": {"text": "6", "ok": False}}
    >>> columns = {"prompt": "question", "completion": "text", "label": "ok"}
    >>> [(item.reply, item.is_correct) for item in load_judged([row], columns=columns, spread=("a", "b")).items]
    [('5', True), ('6', False)]
    """
    return _load(JudgedReply, JUDGED_LAYOUTS, source, columns or {}, on_bad_row, split, name, labels, spread)


def load_stepwise(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Stepwise]:
    r"""Reads replies with a label for each step; parameters and errors are those of `load_problems`.

    The sets of columns, in order: prompt, steps, labels; prompt, completions, labels. Labels are true or false, + or -,
    numbers from 0 to 1, or null where nobody judged. A step without a blank at its end gets a line break.

    >>> row = {"prompt": "2 + 3 - 1 = ?", "completions": ["2 + 3 = 6", "6 - 1 = 5"], "labels": [False, False]}
    >>> load_stepwise([row]).items[0].reply
    '2 + 3 = 6\n6 - 1 = 5'
    """
    return _load(Stepwise, STEPWISE_LAYOUTS, source, columns or {}, on_bad_row, split, name)


def load_labelled(
    source: object,
    *,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    split: str = "",
    name: str | None = None,
) -> Loaded[Labelled]:
    """Reads texts with the name of their class; parameters and errors are those of `load_problems`.

    The sets of columns, in order: messages, label; text, label; prompt, label. Numbers and truth values are names too.

    >>> load_labelled([{"text": "Well done!", "label": 1}]).items[0].label
    '1'
    """
    return _load(Labelled, LABELLED_LAYOUTS, source, columns or {}, on_bad_row, split, name)


def to_row(item: Conversation | Preference | Feedback) -> dict[str, Any]:
    """The item as a row that its loader reads back; a single question as text, as other libraries expect it.

    >>> ask = (Message(role="user", content="2 + 3 = ?"),)
    >>> to_row(Preference(id="p", messages=ask, chosen="5", rejected="6"))
    {'id': 'p', 'prompt': '2 + 3 = ?', 'chosen': '5', 'rejected': '6'}
    """
    head = {"id": item.id, **{key: value for key, value in item.metadata.items() if key != "id"}}
    if isinstance(item, Conversation):
        return head | {"messages": _as_lists(item.messages)}
    is_question = [message.role for message in item.messages] == ["user"]

    def reply(text: str) -> Any:
        return text if is_question else [{"role": "assistant", "content": text}]

    prompt = {"prompt": item.messages[0].content if is_question else _as_lists(item.messages)}
    if isinstance(item, Preference):
        return head | prompt | {"chosen": reply(item.chosen), "rejected": reply(item.rejected)}
    return head | prompt | {"completion": reply(item.reply), "label": item.is_desirable}


def _as_lists(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _load(
    kind: type[Item],
    layouts: Sequence[Layout],
    source: object,
    columns: Mapping[str, str],
    on_bad_row: OnBadRow,
    split: str,
    name: str | None,
    labels: Mapping[str, bool] | None = None,
    spread_columns: Sequence[str] = (),
) -> Loaded[Item]:
    _check_settings(layouts, columns, on_bad_row)
    opened = open_source(source, split=split, name=name)
    skipped: list[tuple[str, str]] = []

    def report(place: str, error: LydianError) -> None:
        if on_bad_row == "stop":
            raise error
        skipped.append((place, str(error).removeprefix(place).lstrip(",: ")))

    layout: Layout | None = None
    items: list[Item] = []
    places: dict[str, str] = {}

    def replies(raw: RawRow) -> Iterator[RawRow]:
        try:
            found = list(spread(raw, spread_columns)) if spread_columns else [raw]
        except DataError as error:
            report(raw.place, _placed(raw.place, error, None, columns))
            return
        yield from (relabelled(entry, columns, labels) for entry in found) if labels else found

    for raw in (entry for whole in opened.rows(report) for entry in replies(whole)):
        row = Row(values=raw.values, columns=columns)
        try:
            layout = layout or recognise(layouts, row)
            item = _read(kind, layout, row, raw, split, name)
            if item.id in places:
                raise _repeated(item.id, places[item.id])
        except DataError as error:
            report(raw.place, _placed(raw.place, error, layout, columns))
        else:
            places[item.id] = raw.place
            items.append(item)
    if not items:
        raise DataError(
            where=opened.description,
            given=f"{len(skipped)} bad rows, the first at {': '.join(skipped[0])}" if skipped else "no rows",
            expected="at least one good row",
            fix="Check that this is the file you mean, and that it holds data.",
        )
    return Loaded(
        items=tuple(items),
        skipped=tuple(skipped),
        digest=opened.digest,
        licence=opened.licence,
        source=opened.description,
    )


def _read(kind: type[Item], layout: Layout, row: Row, raw: RawRow, split: str, name: str | None) -> Item:
    is_judged = kind is JudgedReply  # then replies may be empty, and those to one prompt share its id
    for field, column in row.columns.items():
        if row.get(field) is None or (row.get(field) == "" and not is_judged):
            raise row.wrong(field, f"a value: columns maps {field!r} to {column!r}")
    id_field = "ID" if "ID" in layout.optional and row.has("ID") and "id" not in row.columns else "id"
    has_id = row.get(id_field) not in (None, "") and (not is_judged or "id" in row.columns)
    read = layout.fields if is_judged else (*layout.fields, id_field)
    used = {row.columns.get(field, field) for field in read}
    metadata = {
        str(column): value
        for column, value in raw.values.items()
        if column not in used and isinstance(value, str | int | float | bool | list | dict)
    }
    return kind(
        id=row.answer(id_field) if has_id else f"{raw.label}:{raw.number}",
        source=name or raw.label,
        split=split,
        metadata=metadata,
        **layout.read(row),
    )


def _placed(place: str, error: DataError, layout: Layout | None, columns: Mapping[str, str]) -> DataError:
    example = f" A right row: {layout.right_row(columns)}" if layout else ""
    return DataError(
        where=f"{place}: {error.where}", given=error.given, expected=error.expected, fix=error.fix + example
    )


def _repeated(item_id: str, place: str) -> DataError:
    return DataError(
        where="the id",
        given=f"{item_id!r}, which {place} has too",
        expected="ids that differ",
        fix="Give each row its own id, name another column with columns={'id': '…'}, or load the files one by one.",
    )


def _check_settings(layouts: Sequence[Layout], columns: Mapping[str, str], on_bad_row: str) -> None:
    if on_bad_row not in get_args(OnBadRow):
        raise InputError(where="on_bad_row", given=repr(on_bad_row), expected="'stop' or 'skip'", fix="Choose one.")
    known = sorted(known_fields(layouts), key=lambda field: (len(field) == 1, field))
    for field in columns:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            raise InputError(
                where="columns",
                given=repr(field),
                expected=f"one of {', '.join(known)}, each mapped to the name of a column",
                fix=f"Did you mean {near[0]!r}?" if near else "Write {field: column}, not the other way round.",
            )
