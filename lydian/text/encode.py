"""Texts to train on as token ids: preferences as pairs, everything else as sequences."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from lydian.data.forest import Item, sequences_of
from lydian.data.labelled import Labelled, Stepwise, classes_of
from lydian.data.problems import Conversation, Feedback, Message, Preference, Problem
from lydian.data.sequence import Pair, Sequence
from lydian.errors import TemplateError
from lydian.text.encoded import Encoded, Template
from lydian.text.label_sites import encode_labelled, encode_stepwise


def encode_reply(messages: Seq[Message], reply: str, template: Template) -> Encoded:
    """The conversation that ends in the reply; only the reply is trained, whatever the assistant said before."""
    prompt = len(template.encode_prompt(messages))
    whole = template.encode_conversation((*messages, Message(role="assistant", content=reply)))
    is_reply = tuple(used and t >= prompt for t, used in enumerate(whole.trained))
    return Encoded(tokens=whole.tokens, trained=is_reply, roles=whole.roles)


def encode_preference(preference: Preference, template: Template) -> tuple[Encoded, Encoded]:
    """The conversations that end in the chosen and in the rejected reply; only the reply is trained."""
    messages = preference.messages
    return encode_reply(messages, preference.chosen, template), encode_reply(messages, preference.rejected, template)


def encode_items(
    items: Seq[Conversation | Preference | Feedback | Stepwise | Labelled], template: Template
) -> list[Item]:
    """Preferences as pairs, everything else as sequences.

    Feedback has the fact `is_desirable`; its group is its prompt, for replies to one prompt are no strangers to each
    other: the KL of KTO is measured on prompts with replies to others. A pair has `is_desirable`, `is_chosen`, `pair`,
    and `pair_margin` where the preference's metadata have a number `margin`. A text with a class has `label`, the place
    of its class among the sorted names of all that occur.

    Raises TemplateError, with the item's id, for what the template cannot lay out.
    """
    prompts: dict[tuple[Message, ...], str] = {}
    labelled = [item for item in items if isinstance(item, Labelled)]
    classes = classes_of(labelled) if labelled else ()
    encoded: list[Item] = []
    for index, item in enumerate(items):
        try:
            encoded.append(_encode(item, index, prompts, template, classes))
        except TemplateError as error:
            raise TemplateError(
                where=f"{item.id!r}: {error.where}", given=error.given, expected=error.expected, fix=error.fix
            ) from error
    return encoded


def lengths(
    item: Problem | Conversation | Preference | Feedback | Stepwise | Labelled, template: Template
) -> list[int]:
    """Tokens of what the item becomes: a prompt to answer, one sequence, or the two of a preference.

    Raises TemplateError for what the template cannot lay out.
    """
    if isinstance(item, Problem):
        return [len(template.encode_prompt(item.messages))]
    classes = (item.label,) if isinstance(item, Labelled) else ()  # its number does not change its length
    return [len(sequence.tokens) for sequence in sequences_of([_encode(item, 0, {}, template, classes)])]


def _encode(
    item: Conversation | Preference | Feedback | Stepwise | Labelled,
    index: int,
    prompts: dict[tuple[Message, ...], str],
    template: Template,
    classes: Seq[str],
) -> Item:
    if isinstance(item, Stepwise):
        return encode_stepwise(item, template)
    if isinstance(item, Labelled):
        return encode_labelled(item, template, classes)
    if isinstance(item, Conversation):
        whole = template.encode_conversation(item.messages)
        return Sequence(id=item.id, group=item.id, tokens=whole.tokens, trained=whole.trained)
    if isinstance(item, Feedback):
        reply = encode_reply(item.messages, item.reply, template)
        return Sequence(
            id=item.id,
            group=prompts.setdefault(item.messages, item.id),
            tokens=reply.tokens,
            trained=reply.trained,
            facts={"is_desirable": float(item.is_desirable)},
        )
    margin = item.metadata.get("margin")
    graded = {"pair_margin": float(margin)} if isinstance(margin, int | float) else {}
    chosen, rejected = (
        Sequence(
            id=f"{item.id}/{name}",
            group=prompts.setdefault(item.messages, item.id),
            tokens=reply.tokens,
            trained=reply.trained,
            facts={"pair": float(index), **graded}
            | dict.fromkeys(("is_chosen", "is_desirable"), float(name == "chosen")),
        )
        for name, reply in zip(("chosen", "rejected"), encode_preference(item, template), strict=True)
    )
    return Pair(chosen=chosen, rejected=rejected)
