"""Messages to ids: `ChatTemplate` (the tokenizer's own chat template) and `PlainTemplate` (a prompt for base models).

What a policy sees when it samples (`encode_prompt`) is a prefix of what it is trained on (`encode_conversation`), id
for id; a template for which this cannot be kept is refused, never guessed around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lydian.errors import RecipeError
from lydian.text.chat import ChatTemplate
from lydian.text.encoded import Encoded, Template
from lydian.text.plain import PlainTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatTemplate", "Encoded", "PlainTemplate", "Template", "make_template"]

_KINDS: dict[str, type[ChatTemplate] | type[PlainTemplate]] = {"chat": ChatTemplate, "plain": PlainTemplate}


def make_template(kind: str, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Template:
    """The template of a kind, "chat" or "plain", with the settings of its class; RecipeError for another kind."""
    if kind not in _KINDS:
        raise RecipeError(
            where="template.kind", given=repr(kind), expected=" or ".join(map(repr, _KINDS)), fix="Choose one of them."
        )
    return _KINDS[kind](tokenizer, **settings)
