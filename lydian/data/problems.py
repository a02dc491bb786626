"""What a model is asked, and what it is shown: `Problem`, `Conversation`, `Preference`, `Feedback`. All frozen text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from lydian.errors import DataError

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    Example: `Message(role="user", content="What is 2 + 3?")`
    """

    role: Role
    content: str

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise DataError(
                where="Message.role",
                given=repr(self.role),
                expected=f"one of {', '.join(get_args(Role))}",
                fix="Rename the role, or map it when loading.",
            )
        if not isinstance(self.content, str):
            raise DataError(
                where="Message.content",
                given=type(self.content).__name__,
                expected="a string",
                fix="Convert the content to text first.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something to answer, and how to know that the answer is right.

    `messages` is the prompt (never ends with the assistant); `answer` is the gold answer as text, or None where the
    verifier needs none. `metadata` holds facts for strata and clusters (difficulty, subject, …).

    Example: `Problem(id="add-7", messages=(Message(role="user", content="2 + 3 = ?"),), answer="5")`
    """

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_messages(self.id, self.messages, ends_with_assistant=False)

    @property
    def question(self) -> str:
        """The last message's text: what is being asked."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages to imitate; the last one is the assistant's. Supervised fine-tuning trains the assistant's messages.

    A conversation whose only message is the assistant's is plain text (next-token pretraining).
    """

    id: str
    messages: tuple[Message, ...]
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_messages(self.id, self.messages, ends_with_assistant=True)
        _check_reply(f"{self.id!r}.messages[{len(self.messages) - 1}]", self.messages[-1].content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A prompt with a chosen and a rejected reply.

    Example: `Preference(id="p1", messages=(Message(role="user", content="Hi"),), chosen="Hello!", rejected="Go away.")`
    """

    id: str
    messages: tuple[Message, ...]
    chosen: str
    rejected: str
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_messages(self.id, self.messages, ends_with_assistant=False)
        for name, reply in (("chosen", self.chosen), ("rejected", self.rejected)):
            _check_reply(f"preference {self.id!r}, {name}", reply)
        if self.chosen.split() == self.rejected.split():
            raise DataError(
                where=f"preference {self.id!r}, chosen and rejected",
                given="chosen equal to rejected" + ("" if self.chosen == self.rejected else " but for blanks"),
                expected="two different replies",
                fix="Drop the row: it carries no preference.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """A prompt with one reply and whether that reply is wanted: a thumb up or down, without a pair.

    Example: `Feedback(id="f1", messages=(Message(role="user", content="Hi"),), reply="Hello!", is_desirable=True)`
    """

    id: str
    messages: tuple[Message, ...]
    reply: str
    is_desirable: bool
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_messages(self.id, self.messages, ends_with_assistant=False)
        _check_reply(f"feedback {self.id!r}, reply", self.reply)
        if not isinstance(self.is_desirable, bool):
            raise DataError(
                where=f"feedback {self.id!r}, is_desirable",
                given=repr(self.is_desirable),
                expected="True or False",
                fix="Load with `load_feedback`, which reads labels.",
            )


Item = TypeVar("Item", Problem, Conversation, Preference, Feedback)
"""What a data set holds: items of one kind."""


def check_unique_ids(items: Iterable[Problem | Conversation | Preference | Feedback], *, where: str) -> None:
    """Raises DataError if two items share an id: ids key seeds, records and paired comparisons."""
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(
                where=where,
                given=f"the id {item.id!r} twice",
                expected="unique ids",
                fix="Give each row its own `id`, or leave the column out to have one made from file and row number.",
            )
        seen.add(item.id)


def problems_digest(problems: Iterable[Problem]) -> str:
    """SHA-256 over ids, messages and answers, in order: equal exactly when the problems are equal."""
    digest = hashlib.sha256()
    for problem in problems:
        row = [problem.id, [[m.role, m.content] for m in problem.messages], problem.answer]
        digest.update(json.dumps(row, ensure_ascii=True).encode())
    return digest.hexdigest()


def _check_messages(item_id: str, messages: tuple[Message, ...], *, ends_with_assistant: bool) -> None:
    expected = "the last message from the assistant" if ends_with_assistant else "a last message not from the assistant"
    if not messages:
        raise DataError(
            where=f"{item_id!r}.messages", given="no messages", expected=expected, fix="Drop the row or fill it in."
        )
    if (messages[-1].role == "assistant") != ends_with_assistant:
        raise DataError(
            where=f"{item_id!r}.messages",
            given=f"a last message from {messages[-1].role}",
            expected=expected,
            fix="Load answers to imitate as conversations and questions to answer as problems.",
        )
    _check_order(item_id, [message.role for message in messages])


def _check_order(item_id: str, roles: list[Role]) -> None:
    """What chat templates take: system at the head only, nobody twice in a row, tools after the assistant's call.

    Several tools may answer one call; the assistant may begin (a greeting).
    """
    for place, (before, role) in enumerate(zip([None, *roles[:-1]], roles, strict=True)):
        expected = ""
        if role == "system" and place > 0:
            expected = "a system message in the first place only"
        elif role == "tool" and before not in ("assistant", "tool"):
            expected = "a tool's message after the assistant's or another tool's"
        elif role == before != "tool":
            expected = f"somebody else between two messages from {role}"
        if expected:
            raise DataError(
                where=f"{item_id!r}.messages[{place}]",
                given=f"a message from {role} after {before or 'nothing'}",
                expected=expected,
                fix="Correct the order, join the messages, or drop the row.",
            )


def _check_reply(where: str, reply: str) -> None:
    if not reply.strip():
        raise DataError(
            where=where,
            given="an empty reply",
            expected="text",
            fix="Drop the row, or load with on_bad_row='skip'.",
        )
