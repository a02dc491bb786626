"""What a template gives, `Encoded`, and what it must do, `Template`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from lydian.data.problems import Message
from lydian.errors import TemplateError
from lydian.text.tokenizer import Codec

TokenRole = Literal["system", "user", "assistant", "tool", "template"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A conversation in ids.

    tokens   [T] ids
    trained  [T] True where the token is a target: the assistant's tokens and the stop token after them
    roles    [T] who wrote the token: system, user, assistant, tool, or template (all that no message holds)
    """

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    roles: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = (len(self.tokens), len(self.trained), len(self.roles))
        if len(set(lengths)) != 1 or any(self.trained[:1]) or not set(self.roles) <= set(get_args(TokenRole)):
            raise TemplateError(
                where="Encoded",
                given=f"lengths {lengths}, first trained {self.trained[:1]}, roles {sorted(set(self.roles))}",
                expected=f"equal lengths, a first token that is not trained, roles of {', '.join(get_args(TokenRole))}",
                fix="Correct the template that made it.",
            )


class Template(Protocol):
    """Turns messages into ids and completions back into text.

    Law (tests/contracts/test_templates.py): encode_prompt(messages[:-1]) is a prefix of encode_conversation(messages),
    the tokens after it are trained up to and including the stop token, and no other token ends the reply.

    Equal fingerprints mean equal prompts for equal messages.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def stop_tokens(self) -> frozenset[int]: ...

    def encode_prompt(self, messages: Seq[Message]) -> tuple[int, ...]:
        """Ids that end where the assistant's reply begins."""
        ...

    def encode_conversation(self, messages: Seq[Message]) -> Encoded:
        """Ids of messages that end with the assistant's, with what is trained."""
        ...

    def decode(self, tokens: Seq[int]) -> str:
        """Text of a completion, the stop token at its end removed."""
        ...

    def pieces(self, tokens: Seq[int]) -> list[str]:
        """One printable string a token."""
        ...


def facts_digest(facts: list[object]) -> str:
    """SHA-256 of facts that JSON can hold."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def require_end(where: str, messages: Seq[Message], *, by_assistant: bool) -> None:
    """Raises TemplateError unless there are messages and the last is (not) the assistant's."""
    if not messages or (messages[-1].role == "assistant") != by_assistant:
        raise TemplateError(
            where=where,
            given=f"messages from {[m.role for m in messages]}",
            expected=f"at least one, the last {'' if by_assistant else 'not '}from the assistant",
            fix="encode_prompt takes what is asked, encode_conversation what is asked and answered.",
        )


def refuse_stop_text(where: str, codec: Codec, reply: str) -> None:
    """Raises TemplateError if a reply to train holds a stop token: a policy would end there."""
    for name in codec.tokenizer.convert_ids_to_tokens(sorted(codec.stop_tokens)):
        if name in reply:
            raise TemplateError(
                where=where,
                given=f"the stop token {name!r} inside a reply: {reply[:80]!r}",
                expected="a reply that ends where the template ends it",
                fix="Remove it from the data: the template adds it.",
            )
