"""`PlainTemplate`: a prompt for base models, and plain text for next-token training."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from lydian.data.problems import Message, Role
from lydian.errors import RecipeError, TemplateError
from lydian.text.encoded import Encoded, facts_digest, refuse_stop_text, require_end
from lydian.text.roles import token_roles
from lydian.text.tokenizer import Codec, eos_tokens, token_pieces, tokenizer_fingerprint, tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PlainTemplate:
    r"""A prompt for base models: the question set into a text, then the reply, then the stop token.

    prompt  text with `{question}` in it once, replaced by the user's message; other braces mean themselves
    stop    the token that ends a reply; None takes the tokenizer's EOS
    generation_config  the model's, for its list of EOS ids

    A reply is encoded on its own, so that no token holds parts of both prompt and reply. A conversation whose only
    message is the assistant's is plain text: every token but the first is trained, and the stop token ends it. A prompt
    is one user message: a template without turns would lose the others silently.

    Example: `PlainTemplate(tokenizer, prompt="Question: {question}\nAnswer:")`
    """

    name = "plain"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompt: str = "{question}",
        stop: str | None = None,
        generation_config: object | None = None,
    ) -> None:
        if prompt.count("{question}") != 1:
            raise RecipeError(
                where="template.prompt", given=repr(prompt), expected="{question} in it, once", fix="Put it in."
            )
        self.tokenizer = tokenizer
        self.prompt = prompt
        self._where = f"plain template with {tokenizer_name(tokenizer)}"
        self._stop = self._find_stop(stop)
        self._codec = Codec(tokenizer, eos_tokens(tokenizer, generation_config) | {self._stop})
        facts = ["plain", tokenizer_fingerprint(tokenizer), prompt, self._stop, sorted(self.stop_tokens)]
        self.fingerprint = facts_digest(facts)

    @property
    def stop_tokens(self) -> frozenset[int]:
        return self._codec.stop_tokens

    def encode_prompt(self, messages: Seq[Message]) -> tuple[int, ...]:
        require_end(self._where, messages, by_assistant=False)
        ids = self._codec.encode(self._fill(messages)).ids
        self._require_tokens(len(ids))
        return ids

    def encode_conversation(self, messages: Seq[Message]) -> Encoded:
        require_end(self._where, messages, by_assistant=True)
        reply = messages[-1].content
        if len(messages) == 1:
            tokens, start = self._codec.encode(reply), 1
            roles = token_roles(tokens, [((0, len(reply)), "assistant")])
        else:
            refuse_stop_text(self._where, self._codec, reply)
            text, question = self._fill(messages[:-1]), messages[0].content
            at = self.prompt.index("{question}")
            prompt = self._codec.encode(text)
            self._require_tokens(len(prompt.ids))
            tokens, start = self._codec.append(prompt, reply, at=len(text)), len(prompt.ids)
            answer = (len(text), len(text + reply))
            roles = token_roles(tokens, [((at, at + len(question)), "user"), (answer, "assistant")])
        ids = (*tokens.ids, self._stop)
        if len(ids) <= start:
            raise TemplateError(
                where=self._where, given=f"no trained token in {reply!r}", expected="text", fix="Drop the empty row."
            )
        trained = [False] * start + [True] * (len(ids) - start)
        return Encoded(tokens=ids, trained=tuple(trained), roles=(*roles, "assistant"))

    def decode(self, tokens: Seq[int]) -> str:
        return self._codec.decode(tokens)

    def pieces(self, tokens: Seq[int]) -> list[str]:
        return token_pieces(self.tokenizer, tokens)

    def _fill(self, messages: Seq[Message]) -> str:
        roles: list[Role] = [m.role for m in messages]
        if roles != ["user"]:
            raise TemplateError(
                where=self._where,
                given=f"a prompt of messages from {', '.join(roles)}",
                expected="one message from the user",
                fix='Use the tokenizer\'s chat template (kind = "chat"), or put all of it into one message.',
            )
        return self.prompt.replace("{question}", messages[0].content)

    def _require_tokens(self, num_tokens: int) -> None:
        if num_tokens == 0:
            raise TemplateError(
                where=self._where,
                given="a prompt without tokens",
                expected="at least one: the first token of the reply is predicted from it",
                fix="Give the question, or put text into template.prompt.",
            )

    def _find_stop(self, stop: str | None) -> int:
        found: Any = self.tokenizer.eos_token_id if stop is None else self.tokenizer.get_vocab().get(stop)
        if found is None:
            raise TemplateError(
                where=self._where,
                given="a tokenizer without EOS" if stop is None else f"{stop!r}, which is no token of it",
                expected="a token that ends a reply",
                fix="Name one that the vocabulary has: template.stop.",
            )
        return int(found)
