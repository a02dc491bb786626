"""From files and tables to problems, conversations and preferences: `load_problems`, `load_conversations`, …"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from lydian.data.layouts import (
    CONVERSATION_LAYOUTS,
    PREFERENCE_LAYOUTS,
    PROBLEM_LAYOUTS,
    Layout,
    Row,
    known_fields,
    recognise,
)
from lydian.data.problems import Conversation, Preference, Problem
from lydian.data.sources import RawRow, open_source
from lydian.errors import DataError, InputError, LydianError

OnBadRow = Literal["stop", "skip"]
Item = TypeVar("Item", Problem, Conversation, Preference)


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


def _load(
    kind: type[Item],
    layouts: Sequence[Layout],
    source: object,
    columns: Mapping[str, str],
    on_bad_row: OnBadRow,
    split: str,
    name: str | None,
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
    for raw in opened.rows(report):
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
    for field, column in row.columns.items():
        if row.get(field) in (None, ""):
            raise row.wrong(field, f"a value: columns maps {field!r} to {column!r}")
    id_field = "ID" if "ID" in layout.optional and row.has("ID") and "id" not in row.columns else "id"
    used = {row.columns.get(field, field) for field in (*layout.fields, id_field)}
    metadata = {
        str(column): value
        for column, value in raw.values.items()
        if column not in used and isinstance(value, str | int | float | bool | list | dict)
    }
    return kind(
        id=row.answer(id_field) if row.get(id_field) not in (None, "") else f"{raw.label}:{raw.number}",
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
