"""What the columns of a row mean: the layouts people already have, in the order in which they are looked for.

A layout is recognised by its required columns; a row of it becomes the fields of a problem, conversation or preference.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeGuard

from lydian.data.problems import Message
from lydian.data.sources import short
from lydian.errors import DataError

_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool"}
_ANNOTATION = re.compile(r"<<[^<>=]*=[^<>]*>>")
_THOUSANDS = re.compile(r"[-+$]*\d{1,3}(,\d{3})+(\.\d+)?%?")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # half a character: no tokenizer and no file can take it
_WHOLE = re.compile(r"([-+]?\d+)\.0+")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row, its fields looked up under the names that the file uses: `columns` maps a field to its column."""

    values: Mapping[str, object]
    columns: Mapping[str, str]

    def has(self, field: str) -> bool:
        return self.get(field) is not None

    def get(self, field: str) -> object:
        return self.values.get(self.columns.get(field, field))

    def text(self, field: str) -> str:
        """The field's text; raises DataError if it is absent, blank, or not text."""
        value = self.get(field)
        if isinstance(value, str) and value.strip() and not _SURROGATE.search(value):
            return value
        raise self.wrong(field, "text")

    def answer(self, field: str) -> str:
        """The field as an answer: text without outer blanks, or a number written plainly (43.0 becomes 43)."""
        value = self.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return str(int(value)) if value == int(value) else f"{Decimal(repr(value)):f}"
        if not isinstance(value, str):
            raise self.wrong(field, "text or a finite number")
        return self.text(field).strip()

    def messages(self, field: str, *, role: str = "role", content: str = "content") -> tuple[Message, ...]:
        """The field as a list of messages, each a mapping with a role and a content."""
        value = self.get(field)
        if not is_list(value) or not value:
            raise self.wrong(field, f"a list of {{{role!r}, {content!r}}}")
        return tuple(self._message(field, k, entry, role, content) for k, entry in enumerate(value))

    def _message(self, field: str, index: int, entry: object, role: str, content: str) -> Message:
        where = f"column {self.columns.get(field, field)!r}, message {index}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get(content), str) or entry.get("tool_calls"):
            raise DataError(
                where=where,
                given=short(entry),
                expected=f"{{{role!r}: …, {content!r}: text}}, without tool calls",
                fix="Write the message as text.",
            )
        named: Any = entry.get(role)  # Message says which names are roles
        speaker: Any = _ROLES.get(named, named) if isinstance(named, str) else named
        try:
            return Message(role=speaker, content=entry[content])
        except DataError as error:
            raise DataError(where=where, given=error.given, expected=error.expected, fix=error.fix) from error

    def wrong(self, field: str, expected: str) -> DataError:
        column = self.columns.get(field, field)
        found = self.values.get(column)
        given = f"{type(found).__name__} {short(found)}" if found is not None else f"no value (columns: {self.names})"
        return DataError(where=f"column {column!r}", given=given, expected=expected, fix="Correct the row.")

    @property
    def names(self) -> str:
        return ", ".join(str(name) for name, value in self.values.items() if value is not None) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns that belong together.

    required  fields by which the layout is recognised
    optional  fields that are read where they are there
    example   a right row
    read      a row → the fields `messages`, and `answer` or `chosen` and `rejected`, of what is being loaded
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    example: Mapping[str, object]
    read: Callable[[Row], dict[str, Any]]

    @property
    def fields(self) -> tuple[str, ...]:
        return self.required + self.optional

    def describe(self, columns: Mapping[str, str]) -> str:
        return "+".join(columns.get(field, field) for field in self.required)

    def right_row(self, columns: Mapping[str, str]) -> str:
        return json.dumps({columns.get(field, field): value for field, value in self.example.items()})


def recognise(layouts: Sequence[Layout], row: Row) -> Layout:
    """The first layout whose required columns all have a value in the row; raises DataError if there is none.

    Where `columns` renames fields, only layouts that have these fields are looked at: a mapping is never ignored.
    """
    renamed = set(row.columns) - {"id"}
    candidates = [layout for layout in layouts if renamed <= set(layout.fields)]
    for layout in candidates:
        if all(row.has(field) for field in {*layout.required, *renamed}):
            return layout
    raise DataError(
        where="the columns",
        given=row.names,
        expected=f"one of {', '.join(layout.describe(row.columns) for layout in candidates)}",
        fix="Say which column is which, for example columns={'question': 'my_column'}.",
    )


def known_fields(layouts: Sequence[Layout]) -> Collection[str]:
    """Every name that `columns` may map."""
    return {"id", *(field for layout in layouts for field in layout.fields)}


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A list or tuple, as JSON, parquet and `datasets` give them."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


# -- what is asked ----------------------------------------------------------------------------------------------------


def _user(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def _asked(field: str) -> Callable[[Row], tuple[Message, ...]]:
    return lambda row: _user(row.text(field).strip())


def read_messages(row: Row) -> tuple[Message, ...]:
    """The column `messages`."""
    return row.messages("messages")


def read_sharegpt(row: Row) -> tuple[Message, ...]:
    """The column `conversations`, in ShareGPT's words."""
    return row.messages("conversations", role="from", content="value")


def read_prompt(row: Row) -> tuple[Message, ...]:
    """The column `prompt`: a text from the user, or messages."""
    return row.messages("prompt") if is_list(row.get("prompt")) else _user(row.text("prompt"))


def _body_and_question(row: Row) -> tuple[Message, ...]:
    body = row.text("Body").strip()
    stop = "" if body[-1] in ".,;:!?" else "."
    return _user(f"{body}{stop} {row.text('Question').strip()}")


def _options(row: Row) -> list[str]:
    if not row.has("choices"):
        letters = [letter for letter in _LETTERS if row.has(letter)]
        missing = sorted(set(_LETTERS[: len(letters)]) - set(letters))
        if missing:
            raise row.wrong(missing[0], "an option for every letter up to the last")
        return [row.answer(letter) for letter in letters]
    choices = row.get("choices")
    if not is_list(choices) or len(choices) < 2 or len(choices) > 26 or not all(isinstance(c, str) for c in choices):
        raise row.wrong("choices", "a list of 2 to 26 texts")
    return [choice.strip() for choice in choices]


def _choice_question(row: Row) -> tuple[Message, ...]:
    options = (f"{letter}. {option}" for letter, option in zip(_LETTERS, _options(row), strict=False))
    return _user("\n".join([row.text("question").strip(), *options]))


# -- what is right, and what is imitated ------------------------------------------------------------------------------


def _letter(row: Row) -> str:
    """The letter of the right option, from a letter in either case or, with a list of choices, an index from 0."""
    letters = _LETTERS[: len(_options(row))]
    value = row.get("answer")
    if isinstance(value, int) and not isinstance(value, bool) and row.has("choices") and 0 <= value < len(letters):
        return letters[value]
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().upper() in letters:
        return value.strip().upper()
    raise row.wrong("answer", f"a letter from A to {letters[-1]}" + (", or an index" if row.has("choices") else ""))


def _after_hashes(row: Row, field: str) -> str:
    """GSM8K's gold answer: what follows the last `####`, without thousands commas; else the whole text."""
    text = row.answer(field)
    gold = text.rpartition("####")[2].strip()
    if not gold:
        raise row.wrong(field, "a final answer after ####")
    return gold.replace(",", "") if _THOUSANDS.fullmatch(gold) else gold


def _final_answer(row: Row) -> str:
    gold = _after_hashes(row, "answer")
    if "\n" in gold:  # a worked solution whose last line is lost would be a gold answer that nothing can equal
        raise row.wrong("answer", "one line, or a worked solution that ends with the answer after ####")
    return gold


def _prompt_answer(row: Row) -> str | None:
    if row.has("answer"):
        return _after_hashes(row, "answer")
    if not row.has("completion"):
        return None
    return read_reply(row, "completion") if is_list(row.get("completion")) else _after_hashes(row, "completion")


def read_reply(row: Row, field: str) -> str:
    """A list that holds one message from the assistant."""
    messages = row.messages(field)
    if len(messages) != 1 or messages[0].role != "assistant":
        raise row.wrong(field, "one message from the assistant")
    return messages[0].content


def _worked_solution(row: Row) -> str:
    """The answer as it is; where it is GSM8K's (ends with ####), without the calculator's `<<48/2=24>>`."""
    text = row.answer("answer")
    return _ANNOTATION.sub("", text) if "####" in text else text


def _plain_number(field: str) -> Callable[[Row], str]:
    def read(row: Row) -> str:
        text = row.answer(field)
        whole = _WHOLE.fullmatch(text)  # "43.0" from a CSV file is the same number as 43.0 from a JSON file
        return whole[1] if whole else text

    return read


def _optional_answer(row: Row) -> str | None:
    return row.answer("answer") if row.has("answer") else None


def _answer(row: Row) -> str:
    return row.answer("answer")


def _solution(row: Row) -> str:
    return row.text("solution").strip()


# -- preferences ------------------------------------------------------------------------------------------------------


def _preference(row: Row) -> dict[str, Any]:
    """Replies as text after an explicit prompt, or as message lists whose common first messages are the prompt.

    The prompt is never guessed from common characters: two replies may begin alike.
    """
    prompt = read_prompt(row) if row.has("prompt") else ()
    if not is_list(row.get("chosen")):
        if not prompt:
            raise row.wrong("prompt", "a prompt, or chosen and rejected as lists of messages that begin with it")
        return {"messages": prompt, "chosen": row.text("chosen"), "rejected": row.text("rejected")}
    chosen, rejected = row.messages("chosen"), row.messages("rejected")
    length = next(
        (k for k, (one, other) in enumerate(zip(chosen[:-1], rejected[:-1], strict=False)) if one != other),
        min(len(chosen), len(rejected)) - 1,
    )
    shared = chosen[:length]
    for field, messages in (("chosen", chosen), ("rejected", rejected)):
        if len(messages) != length + 1 or messages[-1].role != "assistant":
            raise row.wrong(field, "the shared messages, then one message from the assistant")
    return {
        "messages": _join_prompt(row, prompt, shared),
        "chosen": chosen[-1].content,
        "rejected": rejected[-1].content,
    }


def _join_prompt(row: Row, prompt: tuple[Message, ...], shared: tuple[Message, ...]) -> tuple[Message, ...]:
    """The explicit prompt and the messages that both replies begin with: often the same messages, written twice."""
    if not prompt or shared[-len(prompt) :] == prompt or shared[: len(prompt)] == prompt:
        return shared
    if not shared or all(message.role == "system" for message in prompt):
        return prompt + shared
    raise row.wrong("prompt", "the messages that chosen and rejected share, or lists that hold the replies alone")


# -- the tables -------------------------------------------------------------------------------------------------------

_Ask = Callable[[Row], tuple[Message, ...]]


def _problem(ask: _Ask, answer: Callable[[Row], str | None]) -> Callable[[Row], dict[str, Any]]:
    return lambda row: {"messages": ask(row), "answer": answer(row)}


def _conversation(ask: _Ask, reply: Callable[[Row], str]) -> Callable[[Row], dict[str, Any]]:
    return lambda row: {"messages": (*ask(row), Message(role="assistant", content=reply(row)))}


def _completed(row: Row) -> dict[str, Any]:
    if is_list(row.get("completion")):
        return {"messages": read_prompt(row) + row.messages("completion")}
    return {"messages": (*read_prompt(row), Message(role="assistant", content=row.text("completion")))}


_USER: Mapping[str, object] = {"role": "user", "content": "2 + 3 = ?"}
_REPLY: Mapping[str, object] = {"role": "assistant", "content": "2 + 3 = 5"}
_HUMAN: Mapping[str, object] = {"from": "human", "value": "2 + 3 = ?"}
_GPT: Mapping[str, object] = {"from": "gpt", "value": "2 + 3 = 5"}
_WORKED = {"question": "2 + 3 = ?", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"}
_MATH = {"problem": "What is $2+3$?", "solution": r"It is $\boxed{5}$.", "answer": "5"}
_MAWPS = {"input": "2 + 3 = ?", "target": 5.0}
_SVAMP = {"Body": "Ann has 2 pens and buys 3.", "Question": "How many has she now?", "Answer": 5.0}
_CHOICES = {"question": "2 + 3 = ?", "choices": ["4", "5"], "answer": "B"}
_MMLU = {"question": "2 + 3 = ?", "A": "4", "B": "5", "answer": "B"}
_MORE = " ".join(_LETTERS[2:])


def layout_table(*rows: tuple[str, str, Mapping[str, object], Callable[[Row], dict[str, Any]]]) -> tuple[Layout, ...]:
    """Layouts from (required fields, optional fields, a right row, how it is read)."""
    return tuple(
        Layout(required=tuple(required.split()), optional=tuple(optional.split()), example=example, read=read)
        for required, optional, example, read in rows
    )


PROBLEM_LAYOUTS = layout_table(
    ("messages", "answer", {"messages": [_USER], "answer": "5"}, _problem(read_messages, _optional_answer)),
    ("conversations", "answer", {"conversations": [_HUMAN], "answer": "5"}, _problem(read_sharegpt, _optional_answer)),
    ("prompt", "answer completion", {"prompt": "2 + 3 = ?", "answer": "5"}, _problem(read_prompt, _prompt_answer)),
    ("question choices answer", "", _CHOICES, _problem(_choice_question, _letter)),
    ("question A B answer", _MORE, _MMLU, _problem(_choice_question, _letter)),
    ("question answer", "", _WORKED, _problem(_asked("question"), _final_answer)),
    ("problem answer", "", _MATH, _problem(_asked("problem"), _answer)),
    ("input target", "", _MAWPS, _problem(_asked("input"), _plain_number("target"))),
    ("Body Question Answer", "ID", _SVAMP, _problem(_body_and_question, _plain_number("Answer"))),
)
"""How a problem may be laid out, in the order of the search."""

CONVERSATION_LAYOUTS = layout_table(
    ("messages", "", {"messages": [_USER, _REPLY]}, lambda row: {"messages": read_messages(row)}),
    ("conversations", "", {"conversations": [_HUMAN, _GPT]}, lambda row: {"messages": read_sharegpt(row)}),
    ("prompt completion", "", {"prompt": "2 + 3 = ?", "completion": "5"}, _completed),
    ("question choices answer", "", _CHOICES, _conversation(_choice_question, _letter)),
    ("question A B answer", _MORE, _MMLU, _conversation(_choice_question, _letter)),
    ("question answer", "", _WORKED, _conversation(_asked("question"), _worked_solution)),
    ("problem solution", "answer", _MATH, _conversation(_asked("problem"), _solution)),
    ("input target", "", _MAWPS, _conversation(_asked("input"), _plain_number("target"))),
    ("Body Question Answer", "ID", _SVAMP, _conversation(_body_and_question, _plain_number("Answer"))),
    ("text", "", {"text": "Two and three are five."}, _conversation(lambda row: (), lambda row: row.text("text"))),
)
"""How a conversation may be laid out, in the order of the search."""

PREFERENCE_LAYOUTS = layout_table(
    ("chosen rejected", "prompt", {"prompt": "2 + 3 = ?", "chosen": "5", "rejected": "6"}, _preference),
)
"""How a preference may be laid out."""
