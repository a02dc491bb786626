"""What Lydian needs of a transformers tokenizer: ids with one BOS, stop tokens, printable pieces, a fingerprint.

Ids and text meet in this package only. A sampled id is never decoded and encoded again.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lydian.data.problems import Message
from lydian.errors import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Start and end (exclusive) of a stretch of characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Ids, and for each the characters of the text that it stands for; an added BOS stands for none: (0, 0)."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]

    def num_beginning_before(self, place: int) -> int:
        """How many tokens begin before this character."""
        return bisect_left(self.spans, place, key=lambda span: span[0])


class Codec:
    """A tokenizer with the facts about it that decide ids, read once.

    bos          the id that begins every text because the tokenizer itself puts it there; None if it puts none
    stop_tokens  ids that end a completion

    Raises TemplateError for a tokenizer without a `tokenizers` backend, which can give no spans.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_tokens: frozenset[int]) -> None:
        if not tokenizer.is_fast:
            raise TemplateError(
                where=f"tokenizer {tokenizer_name(tokenizer)}",
                given="a tokenizer without a `tokenizers` backend",
                expected="a fast tokenizer, which tells the characters of each token",
                fix="Convert it (AutoTokenizer with use_fast=True, or save it as tokenizer.json).",
            )
        self.tokenizer = tokenizer
        self.bos = added_bos(tokenizer)
        self.stop_tokens = stop_tokens
        self._added = frozenset(tokenizer.added_tokens_decoder)

    def encode(self, text: str) -> Tokenized:
        """Ids of a text, beginning with one BOS where the tokenizer uses one, whether or not the text has it already.

        Raises TemplateError if two BOS begin the text: the model has never seen that.
        """
        tokens = self._encode_as_it_is(text)
        if self.bos is not None and tokens.ids[:1] != (self.bos,):
            tokens = Tokenized(ids=(self.bos, *tokens.ids), spans=((0, 0), *tokens.spans))
        bos = self.tokenizer.bos_token_id
        if bos is not None and tokens.ids[:2] == (bos, bos):
            raise TemplateError(
                where=f"tokenizer {tokenizer_name(self.tokenizer)}",
                given=f"two BOS tokens ({self.tokenizer.bos_token!r}, id {bos}) at the start of {text[:80]!r}",
                expected="one",
                fix="Remove the BOS from the messages or from the prompt: the chat template or the tokenizer adds it.",
            )
        return tokens

    def encode_apart(self, text: str, cuts: Iterable[int]) -> Tokenized:
        """Ids of a text such that those of text[:cut], encoded likewise, are a prefix of them for every cut.

        Where a token would cross a cut, or what follows would split the tokens before it differently, the two sides
        are encoded on their own: a policy that continues the ids before a cut samples exactly such tokens. Raises
        TemplateError if the text after the cut means something else on its own.
        """
        places = sorted({*cuts, len(text)})
        tokens = self.encode(text[: places[0]])
        for done, end in pairwise(places):
            tokens = self._extend(tokens, text, done, end)
        return tokens

    def append(self, tokens: Tokenized, text: str, at: int) -> Tokenized:
        """Tokens followed by those of a text encoded on its own, whose first character is character `at` of all."""
        rest = self._encode_as_it_is(text, at)
        return Tokenized(ids=tokens.ids + rest.ids, spans=tokens.spans + rest.spans)

    def _extend(self, tokens: Tokenized, text: str, done: int, end: int) -> Tokenized:
        """Tokens of text[:done] made into tokens of text[:end]."""
        # Tokenizers encode the stretches between added tokens apart from each other, so what stands before the last of
        # them need not be encoded again: long conversations stay cheap.
        anchor = next((n for n in range(len(tokens.ids) - 1, 0, -1) if tokens.ids[n] in self._added), 0)
        at = tokens.spans[anchor][0] if anchor else 0
        together = self._encode_as_it_is(text[at:end], at) if anchor else self.encode(text[:end])
        known = tokens.ids[anchor:]
        if together.ids[: len(known)] == known:
            rest = len(known)
            return Tokenized(ids=tokens.ids + together.ids[rest:], spans=tokens.spans + together.spans[rest:])
        apart = self.append(tokens, text[done:end], done)
        if self._decode_all(apart.ids[anchor:]) != self._decode_all(together.ids):
            raise TemplateError(
                where=f"tokenizer {tokenizer_name(self.tokenizer)}, where the assistant's reply begins",
                given=f"tokens that join the end of the prompt {text[max(0, done - 30) : done]!r} "
                f"to the beginning of the reply {text[done : done + 30]!r}",
                expected="prompt ids that are a prefix of the ids of prompt and reply",
                fix="Strip whitespace from the beginning of the replies, or end the prompt differently.",
            )
        return apart

    def decode(self, tokens: Seq[int]) -> str:
        """Text of a completion: special tokens shown, the stop token at its end removed."""
        ids = tuple(tokens)
        return self._decode_all(ids[:-1] if ids and ids[-1] in self.stop_tokens else ids)

    def _decode_all(self, ids: Seq[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _encode_as_it_is(self, text: str, at: int = 0) -> Tokenized:
        out: Any = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return Tokenized(ids=tuple(out["input_ids"]), spans=tuple((s + at, e + at) for s, e in out["offset_mapping"]))


def tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """What to call the tokenizer in a message: where it was loaded from, else its class."""
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Seq[Message],
    *,
    is_prompt: bool = False,
    variables: Mapping[str, object] | None = None,
) -> str:
    """Messages in the words of the tokenizer's chat template; a prompt ends with the header of the reply to come.

    Raises TemplateError if the template refuses the messages.
    """
    from jinja2.exceptions import TemplateError as JinjaError

    chat = [{"role": m.role, "content": m.content} for m in messages]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=is_prompt, **(variables or {}))
    except JinjaError as error:
        raise TemplateError(
            where=f"chat template of {tokenizer_name(tokenizer)}",
            given=f"messages from {', '.join(m.role for m in messages)}; it says: {error}",
            expected="messages that the template can render",
            fix="Change the messages: some templates take no system message and want user and assistant in turn.",
        ) from error
    assert isinstance(text, str)
    return text


def added_bos(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The BOS id if the tokenizer puts it before every text by itself, else None (having a BOS is not using it)."""
    bos: Any = tokenizer.bos_token_id
    ids: Any = tokenizer("a")["input_ids"]
    return bos if bos is not None and ids[:1] == [bos] else None


def eos_tokens(tokenizer: PreTrainedTokenizerBase, generation_config: object | None = None) -> frozenset[int]:
    """EOS of the tokenizer and of the model's generation configuration (one id or several)."""
    configured: Any = getattr(generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, (list, tuple)) else [configured]
    return frozenset(int(i) for i in (tokenizer.eos_token_id, *listed) if i is not None)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template puts after an assistant's reply, such as `<|im_end|>`; None if it puts none.

    Found by rendering two replies that differ: of the ids that both endings share, the first special one.
    """
    if not tokenizer.chat_template:
        return None
    question = Message(role="user", content="a")
    first, second = (
        tokenizer(
            render_chat(tokenizer, [question, Message(role="assistant", content=reply)]), add_special_tokens=False
        )["input_ids"]
        for reply in ("b", "c")
    )
    shared = 0
    while shared < min(len(first), len(second)) and first[-1 - shared] == second[-1 - shared]:
        shared += 1
    # some checkpoints leave the flag "special" off; blank added tokens (runs of spaces) never end a turn
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
    return next((int(i) for i in first[len(first) - shared :] if i in special), None)


def stop_tokens(tokenizer: PreTrainedTokenizerBase, generation_config: object | None = None) -> frozenset[int]:
    """Ids that end a chat completion: EOS, the generation configuration's, and the chat template's end of turn."""
    turn = end_of_turn(tokenizer)
    return eos_tokens(tokenizer, generation_config) | (frozenset() if turn is None else {turn})


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over everything that decides ids: vocabulary, merges, normalisation, special tokens, BOS."""
    backend = json.loads(_backend(tokenizer).to_str())
    # these two are settings of the last call, not of the tokenizer
    backend.pop("truncation", None)
    backend.pop("padding", None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name != "pad_token"}
    facts = json.dumps([backend, special, added_bos(tokenizer)], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def token_pieces(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int]) -> list[str]:
    r"""One string a token; joined they are the text. Bytes that are only a part of a character appear as `\xe2`."""
    ids = list(tokens)
    is_byte_level = b'"ByteLevel"' in (
        _backend(tokenizer).decoder.__getstate__() if _backend(tokenizer).decoder else b""
    )
    added = tokenizer.added_tokens_decoder
    pieces: list[str] = []
    for i, name in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if i in added:
            pieces.append(added[i].content)
        elif name is None:
            pieces.append(f"[{i}]")  # an id beyond the tokenizer: models often have padded vocabularies
        elif is_byte_level:
            pieces.append(bytes(_BYTE_OF[c] for c in name).decode("utf-8", errors="backslashreplace"))
        else:
            pieces.append(_BYTE_FALLBACK.sub(lambda m: _byte_text(int(m[1], 16)), name.replace("▁", " ")))
    return pieces


def _backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    return tokenizer.backend_tokenizer


def _byte_text(byte: int) -> str:
    return bytes([byte]).decode("utf-8", errors="backslashreplace")


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 characters are themselves, the rest follow from U+0100."""
    itself = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    moved = [b for b in range(256) if b not in itself]
    return {chr(b): b for b in itself} | {chr(256 + n): b for n, b in enumerate(moved)}


_BYTE_OF = _byte_alphabet()
_BYTE_FALLBACK = re.compile(r"^<0x([0-9A-F]{2})>$")
