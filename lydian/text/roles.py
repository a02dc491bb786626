"""Who wrote which characters of a rendered conversation, and which tokens: for people who check a mask by eye."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from lydian.data.problems import Message
from lydian.text.tokenizer import Span, Tokenized


def message_spans(render: Callable[[Seq[Message]], str], messages: Seq[Message], text: str) -> list[tuple[Span, str]]:
    """Where each message's content lies in `text` = render(messages), with its role.

    The same conversation is rendered with a placeholder for each content; what surrounds the placeholders is the
    template's own text, and contents lie between. A message whose place cannot be told so (the template dropped it, or
    words its surroundings otherwise) is left out.
    """
    marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
    skeleton = render([replace(m, content=mark) for m, mark in zip(messages, marks, strict=True)])
    placed = sorted((skeleton.find(mark), n) for n, mark in enumerate(marks) if skeleton.count(mark) == 1)
    spans: list[tuple[Span, str]] = []
    at = done = 0
    for order, (found, number) in enumerate(placed):
        before = skeleton[done:found]
        if not text.startswith(before, at):
            break
        start = at + len(before)
        done = found + len(marks[number])
        following = placed[order + 1][0] if order + 1 < len(placed) else len(skeleton)
        content = messages[number].content
        shown = next((c for c in (content, content.strip()) if text.startswith(c, start)), None)
        end = start + len(shown) if shown is not None else text.find(skeleton[done:following], start)
        if end < 0:
            break
        spans.append(((start, end), messages[number].role))
        at = end
    return spans


def token_roles(tokens: Tokenized, spans: Seq[tuple[Span, str]]) -> list[str]:
    """The role of the message that each token overlaps, else "template"; both lists are in the order of the text."""
    roles = ["template"] * len(tokens.ids)
    current = 0
    for index, (start, end) in enumerate(tokens.spans):
        while current < len(spans) and spans[current][0][1] <= start:
            current += 1
        if current < len(spans) and max(start, spans[current][0][0]) < end:
            roles[index] = spans[current][1]
    return roles
