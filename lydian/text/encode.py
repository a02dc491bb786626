"""Texts to train on as token ids: conversations as sequences, preferences as pairs."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from lydian.data.forest import Item
from lydian.data.problems import Conversation, Message, Preference
from lydian.data.sequence import Pair, Sequence
from lydian.text.encoded import Encoded, Template


def encode_preference(preference: Preference, template: Template) -> tuple[Encoded, Encoded]:
    """The conversations that end in the chosen and in the rejected reply; only the reply is trained."""
    prompt = len(template.encode_prompt(preference.messages))
    encoded = []
    for reply in (preference.chosen, preference.rejected):
        whole = template.encode_conversation((*preference.messages, Message(role="assistant", content=reply)))
        is_reply = tuple(used and t >= prompt for t, used in enumerate(whole.trained))
        encoded.append(Encoded(tokens=whole.tokens, trained=is_reply, roles=whole.roles))
    return encoded[0], encoded[1]


def encode_items(items: Seq[Conversation | Preference], template: Template) -> list[Item]:
    """Conversations as sequences, preferences as pairs."""
    encoded: list[Item] = []
    for index, item in enumerate(items):
        if isinstance(item, Conversation):
            whole = template.encode_conversation(item.messages)
            encoded.append(Sequence(id=item.id, group=item.id, tokens=whole.tokens, trained=whole.trained))
            continue
        chosen, rejected = (
            Sequence(
                id=f"{item.id}/{name}",
                group=item.id,
                tokens=reply.tokens,
                trained=reply.trained,
                facts={"pair": float(index)} | dict.fromkeys(("is_chosen", "is_desirable"), float(name == "chosen")),
            )
            for name, reply in zip(("chosen", "rejected"), encode_preference(item, template), strict=True)
        )
        encoded.append(Pair(chosen=chosen, rejected=rejected))
    return encoded
