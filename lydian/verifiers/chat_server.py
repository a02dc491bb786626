"""One request to an OpenAI-compatible chat server, with a time limit, retries and a count of what it cost."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""

MAX_RESPONSE_BYTES = 4 * 2**20
MAX_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """What the model behind the server said, and the tokens it took (0 where the server does not say).

    finish  why it ended, in the server's word: stop, length, …; empty where it does not say
    """

    text: str
    finish: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


class NoReply(Exception):
    """The server gave no usable reply; the message says why, and `is_final` whether trying again is in vain."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """A server that speaks `POST {url}/chat/completions`.

    url              as far as `/v1`
    model            the model's name there
    key_variable     environment variable that holds the key; empty: no key is sent
    max_tokens       limit on the reply
    timeout_seconds  limit on waiting for the server, for each try
    """

    url: str
    model: str
    key_variable: str = ""
    max_tokens: int = 1024
    timeout_seconds: float = 60.0

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> ChatReply:
        """The reply at temperature 0. Raises NoReply."""
        return self.reply(messages, {"temperature": 0, "max_tokens": self.max_tokens})

    def reply(self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> ChatReply:
        """The reply with these fields of the request: temperature, max_tokens, seed, … Raises NoReply."""
        body = {"model": self.model, "messages": list(messages), **sampling}
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            headers["Authorization"] = f"Bearer {os.environ.get(self.key_variable, '')}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", data=json.dumps(body).encode(), headers=headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_seconds) as response:
                return _read(response.read(MAX_RESPONSE_BYTES))
        except urllib.error.HTTPError as error:
            raise NoReply(f"HTTP status {error.code}", is_final=error.code not in RETRIED_STATUSES) from error
        except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, not HTTP
            raise NoReply(f"no connection: {error}"[:200], is_final=False) from error


def _read(body: bytes) -> ChatReply:
    try:
        answer = json.loads(body)
        choice = answer["choices"][0]
        text, finish = choice["message"]["content"], str(choice.get("finish_reason") or "")
        usage = answer.get("usage") or {}
        counts = [int(usage.get(key) or 0) for key in ("prompt_tokens", "completion_tokens")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NoReply(f"not a chat completion: {type(error).__name__}", is_final=False) from error
    if not isinstance(text, str):
        raise NoReply("a reply without text", is_final=False)
    return ChatReply(text=text, finish=finish, num_prompt_tokens=counts[0], num_completion_tokens=counts[1])


def ask_until(
    ask: Callable[[], T], *, num_tries: int, backoff_seconds: float, sleep: Callable[[float], Any] = time.sleep
) -> T:
    """The first result of `ask` that does not raise NoReply; the wait doubles after each try.

    Raises the last NoReply after `num_tries`, or at once one that is final.
    """
    for attempt in range(num_tries):
        try:
            return ask()
        except NoReply as error:
            if error.is_final or attempt == num_tries - 1:
                raise
            sleep(min(backoff_seconds * 2**attempt, MAX_BACKOFF_SECONDS))
    raise ValueError("num_tries must be at least 1")
