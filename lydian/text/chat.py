"""`ChatTemplate`: conversations in the words of the tokenizer's own chat template, with masks of trained tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, Literal, get_args

from lydian.data.problems import Message
from lydian.errors import RecipeError, TemplateError
from lydian.text.encoded import Encoded, facts_digest, refuse_stop_text, require_end
from lydian.text.roles import message_spans, token_roles
from lydian.text.tokenizer import (
    Codec,
    Tokenized,
    render_chat,
    stop_tokens,
    token_pieces,
    tokenizer_fingerprint,
    tokenizer_name,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turns = Literal["all", "last"]
_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTemplate:
    r"""The chat template that comes with the tokenizer.

    system     system message for conversations that have none; None leaves them to the template's own default
    train      "all" trains every assistant message, "last" the last one. A template that renders earlier turns
               differently later on (Qwen3's drops their thoughts) can be trained only with "last".
    variables  further variables of the template, such as {"enable_thinking": False} or {"date_string": "1 Jan 2026"}.
               A template that prints today's date has another fingerprint every day unless a variable fixes it.
    generation_config  the model's, for its list of EOS ids

    Trained tokens come from the template's `{% generation %}` markers if it has them, else from rendering the
    conversation up to each reply's beginning and end. The stop token is trained; what follows it in the template
    (ChatML's line break) is context for the next turn. A greeting before all other messages answers nothing and is not
    trained.

    Raises TemplateError where the template or the messages break a law that training rests on.
    """

    name = "chat"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        train: Turns = "all",
        variables: Mapping[str, object] | None = None,
        generation_config: object | None = None,
    ) -> None:
        self._where = f"chat template of {tokenizer_name(tokenizer)}"
        if train not in get_args(Turns):
            raise RecipeError(where="template.train", given=repr(train), expected='"all" or "last"', fix="Choose one.")
        if not tokenizer.chat_template:
            raise TemplateError(
                where=self._where,
                given="a tokenizer without a chat template",
                expected="a chat template",
                fix='Use the plain template (kind = "plain") for base models.',
            )
        self.tokenizer = tokenizer
        self.system = system
        self.train = train
        self.variables = dict(variables or {})
        source: Any = tokenizer.get_chat_template()
        self._has_markers = _GENERATION_MARKER.search(source) is not None
        self._codec = Codec(tokenizer, stop_tokens(tokenizer, generation_config))
        # the rendered probe is a fact of its own: templates may print the date
        probe = self._render(self._complete([Message(role="user", content="a")]), is_prompt=True)
        facts = ["chat", tokenizer_fingerprint(tokenizer), source, system, self.variables, probe]
        self.fingerprint = facts_digest([*facts, sorted(self.stop_tokens)])

    @property
    def stop_tokens(self) -> frozenset[int]:
        return self._codec.stop_tokens

    def encode_prompt(self, messages: Seq[Message]) -> tuple[int, ...]:
        require_end(self._where, messages, by_assistant=False)
        messages = self._complete(messages)
        return self._encode(self._render(messages, is_prompt=True), self._prompts(messages)).ids

    def encode_conversation(self, messages: Seq[Message]) -> Encoded:
        require_end(self._where, messages, by_assistant=True)
        if len(messages) == 1:
            raise TemplateError(
                where=self._where,
                given="a conversation with nothing before the assistant's message (plain text)",
                expected="a message to answer",
                fix='Use the plain template (kind = "plain") for next-token training on text.',
            )
        messages = self._complete(messages)
        whole, prompts = self._render(messages), self._prompts(messages)
        tokens = self._encode(whole, prompts)
        marks = self._marks(messages, tokens) if self._has_markers else None
        roles = token_roles(tokens, message_spans(self._render, messages, whole))
        trained = [False] * len(tokens.ids)
        for turn in prompts if self.train == "all" else [len(messages) - 1]:
            start, end = self._reply(messages, turn, prompts[turn], whole, tokens)
            trained[start:end] = [True] * (end - start) if marks is None else self._marked(marks[start:end], turn)
            roles[start:end] = ["assistant"] * (end - start)
        if not any(trained):
            raise TemplateError(
                where=self._where,
                given=f"no trained token in {whole!r}",
                expected="at least one",
                fix="Check the template's {% generation %} markers; `lydian show` prints the tokens.",
            )
        return Encoded(tokens=tokens.ids, trained=tuple(trained), roles=tuple(roles))

    def decode(self, tokens: Seq[int]) -> str:
        return self._codec.decode(tokens)

    def pieces(self, tokens: Seq[int]) -> list[str]:
        return token_pieces(self.tokenizer, tokens)

    def _render(self, messages: Seq[Message], is_prompt: bool = False) -> str:
        return render_chat(self.tokenizer, messages, is_prompt=is_prompt, variables=self.variables)

    def _complete(self, messages: Seq[Message]) -> tuple[Message, ...]:
        if self.system is None or any(m.role == "system" for m in messages):
            return tuple(messages)
        return (Message(role="system", content=self.system), *messages)

    def _prompts(self, messages: Seq[Message]) -> dict[int, str]:
        """For each assistant message that answers something: what it is given."""
        turns = [n for n, m in enumerate(messages) if m.role == "assistant" and n > 0]
        return {turn: self._render(messages[:turn], is_prompt=True) for turn in turns}

    def _encode(self, text: str, prompts: Mapping[int, str]) -> Tokenized:
        return self._codec.encode_apart(text, [len(p) for p in prompts.values() if text.startswith(p)])

    def _reply(self, messages: Seq[Message], turn: int, prompt: str, whole: str, tokens: Tokenized) -> tuple[int, int]:
        """First token of the assistant's message `turn`, and one past the stop token where sampling would end."""
        refuse_stop_text(self._where, self._codec, messages[turn].content)
        is_last = turn == len(messages) - 1
        self._require_prefix(
            prompt, whole, f"the prompt of message {turn}", _HEADERS_DIFFER if is_last else _TRAIN_LAST
        )
        start, limit = tokens.num_beginning_before(len(prompt)), len(tokens.ids)
        if not is_last and not self._has_markers:  # markers say where a reply lies, whatever becomes of it later
            so_far = self._render(messages[: turn + 1])
            self._require_prefix(so_far, whole, f"messages 0 to {turn}", _TRAIN_LAST)
            limit = tokens.num_beginning_before(len(so_far))
        for position in range(start, limit):
            if tokens.ids[position] in self.stop_tokens:
                return start, position + 1
        raise self._no_stop(turn, whole[len(prompt) :])

    def _marks(self, messages: Seq[Message], tokens: Tokenized) -> list[bool]:
        """[T] True where a token overlaps what the template's generation markers enclose."""
        chat = [{"role": m.role, "content": m.content} for m in messages]
        out: Any = self.tokenizer.apply_chat_template(
            chat,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True},
            **self.variables,
        )
        # by characters, for the tokens of this encoding were not cut where prompts end
        places = zip(out["offset_mapping"], out["assistant_masks"], strict=True)
        enclosed = [((start, end), "enclosed") for (start, end), is_enclosed in places if is_enclosed]
        return [role == "enclosed" for role in token_roles(tokens, enclosed)]

    def _marked(self, marks: list[bool], turn: int) -> list[bool]:
        """Markers of one reply, with its stop token: many leave that out, and a policy would never learn to end."""
        if len(marks) == 1:
            return [True]  # an empty reply: there was nothing to mark
        if any(marks) and not any(marks[-2:]):
            raise self._no_stop(turn, f"{sum(marks)} marked tokens, the stop token apart from them")
        return [*marks[:-1], any(marks)]

    def _no_stop(self, turn: int, given: str) -> TemplateError:
        return TemplateError(
            where=f"{self._where}, message {turn} (assistant)",
            given=f"no stop token right after the reply: {given[-80:]!r}",
            expected=f"one of {self.tokenizer.convert_ids_to_tokens(sorted(self.stop_tokens))}",
            fix="A policy trained so never stops. Make the tokenizer's EOS the token that ends the template's turns.",
        )

    def _require_prefix(self, prefix: str, whole: str, what: str, fix: str) -> None:
        if whole.startswith(prefix):
            return
        at = next((n for n, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), len(whole))
        around = slice(max(0, at - 40), at + 60)
        raise TemplateError(
            where=f"{self._where}, {what}, character {at}",
            given=f"{prefix[around]!r} when rendered alone but {whole[around]!r} within the conversation",
            expected="the beginning of a conversation to be rendered the same whatever follows",
            fix=fix,
        )


_TRAIN_LAST = 'Train only the last assistant message of each conversation: train = "last".'
_HEADERS_DIFFER = (
    "Set the template's variables so that a prompt ends as replies begin (such as enable_thinking = false), "
    "or give the tokenizer a chat template that keeps replies as they are."
)
