"""What a model is asked, and what it is shown: `Problem`, `Conversation`, `Preference`. All frozen, all text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

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
        if self.chosen == self.rejected:
            raise DataError(
                where=f"preference {self.id!r}",
                given="chosen equal to rejected",
                expected="two different replies",
                fix="Drop the row: it carries no preference.",
            )
        for name, reply in (("chosen", self.chosen), ("rejected", self.rejected)):
            if not reply.strip():
                raise DataError(
                    where=f"preference {self.id!r}, {name}",
                    given="an empty reply",
                    expected="text",
                    fix="Drop the row, or load with on_bad_row='skip'.",
                )


def check_unique_ids(items: Iterable[Problem | Conversation | Preference], *, where: str) -> None:
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
