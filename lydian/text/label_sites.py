"""Where a text is judged: sequences whose only sites are a reply's last token, its steps' ends, or a text's end."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq

from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Message
from lydian.data.sequence import Sequence
from lydian.data.steps import split_steps
from lydian.errors import DataError, TemplateError
from lydian.text.encoded import Template


def last_token(
    sequence_id: str, messages: Seq[Message], reply: str, template: Template, *, is_ended: bool = True
) -> Sequence:
    """Prompt and reply with one site, the reply's last token: where its score is read.

    messages  the prompt; sequences of one prompt share a tree
    is_ended  the stop token follows the reply and is its last token; False for a reply that was cut off

    Raises TemplateError for what the template cannot lay out.
    """
    tokens, _ = _reply_tokens(messages, reply, template, is_ended)
    return _sequence(sequence_id, repr(messages), tokens, {len(tokens) - 1})


def step_ends(
    sequence_id: str, messages: Seq[Message], reply: str, template: Template, *, rule: str, is_ended: bool = True
) -> Sequence:
    """Prompt and reply with a site at the end of each step: the token with its last character that is not blank.

    rule  of `split_steps`

    Raises TemplateError for a reply without steps, and for what the template cannot lay out.
    """
    tokens, start = _reply_tokens(messages, reply, template, is_ended)
    sites = _step_sites(tokens[start:], split_steps(reply, rule), template)
    return _sequence(sequence_id, repr(messages), tokens, {start + site for site in sites})


def encode_stepwise(item: Stepwise, template: Template) -> Sequence:
    """A step-labelled reply: sites at the ends of the labelled steps, their labels as stream `target_score`.

    Raises TemplateError where two labelled steps end in one token.
    """
    tokens, start = _reply_tokens(item.messages, item.reply, template, is_ended=True)
    sites = _step_sites(tokens[start:], item.steps, template)
    known = [(start + site, label) for site, label in zip(sites, item.labels, strict=True) if label is not None]
    labels = dict(known)
    if len(labels) < len(known):
        raise TemplateError(
            where=f"steps of {item.id!r}",
            given="two labelled steps that end in one token",
            expected="a token of its own for the end of each step",
            fix="Cut longer steps, or use a tokenizer that does not join their ends.",
        )
    targets = tuple(labels.get(t, 0.0) for t in range(len(tokens)))
    return _sequence(item.id, item.id, tokens, labels, streams={"target_score": targets})


def encode_labelled(item: Labelled, template: Template, classes: Seq[str]) -> Sequence:
    """A text with its class: one site, the text's last token, and the fact `label`, the class's place in `classes`.

    A text that ends with the assistant's message ends with the stop token, any other where a reply would begin.
    Raises DataError for a class that is not among them.
    """
    if item.label not in classes:
        raise DataError(
            where=f"label of {item.id!r}",
            given=repr(item.label),
            expected=f"one of {', '.join(classes)}",
            fix="Leave the row out, or train the classifier on data that has all classes.",
        )
    if item.messages[-1].role == "assistant":
        whole = template.encode_conversation(item.messages)
        tokens = whole.tokens[: _num_to_last(whole.trained)]
    else:
        tokens = template.encode_prompt(item.messages)
    return _sequence(item.id, item.id, tokens, {len(tokens) - 1}, facts={"label": float(classes.index(item.label))})


def _reply_tokens(
    messages: Seq[Message], reply: str, template: Template, is_ended: bool
) -> tuple[tuple[int, ...], int]:
    """Ids up to the reply's last token, and the place of its first; what the template puts after the end is cut."""
    whole = template.encode_conversation((*messages, Message(role="assistant", content=reply)))
    end = _num_to_last(whole.trained)
    return whole.tokens[: end if is_ended else end - 1], len(template.encode_prompt(messages))


def _num_to_last(trained: Seq[bool]) -> int:
    """How many tokens there are up to the last trained one, which is the stop token."""
    return len(trained) - list(reversed(trained)).index(True)


def _step_sites(tokens: Seq[int], steps: Seq[str], template: Template) -> list[int]:
    """For each step, the place among the reply's tokens of the one with its last character that is not blank.

    Characters are counted in the decoded tokens, since templates may strip the blanks around a reply.
    """
    text, reply = template.decode(tokens), "".join(steps)
    if not steps or text.strip() != reply.strip():
        raise TemplateError(
            where="steps of a reply",
            given=f"tokens of {text[:60]!r} for the reply {reply[:60]!r}" if steps else "a reply without steps",
            expected="at least one step, and tokens that decode to the reply",
            fix="Look at the reply with `lydian show`.",
        )

    def num_characters(token: int) -> int:
        return len(template.decode(tokens[: token + 1]))

    end = (len(text) - len(text.lstrip())) - (len(reply) - len(reply.lstrip()))
    sites = []
    for step in steps:
        last = end + len(step.rstrip()) - 1
        end += len(step)
        sites.append(bisect.bisect_right(range(len(tokens)), last, key=num_characters))
    return sites


def _sequence(
    sequence_id: str,
    group: str,
    tokens: tuple[int, ...],
    sites: Collection[int],
    *,
    streams: Mapping[str, tuple[float, ...]] | None = None,
    facts: Mapping[str, float] | None = None,
) -> Sequence:
    trained = tuple(t in sites for t in range(len(tokens)))
    return Sequence(
        id=sequence_id, group=group, tokens=tokens, trained=trained, streams=streams or {}, facts=facts or {}
    )
