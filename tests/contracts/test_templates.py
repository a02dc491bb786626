"""Laws that every template keeps, over the chat templates of the common families and over plain prompts."""

from __future__ import annotations

import pytest

from lydian.errors import TemplateError
from lydian.text.template import make_template
from tests.text.families import FAMILIES, byte_level, sentence_piece, talk, word_level

PLAIN = {
    "plain, byte-level": lambda: byte_level(),
    "plain, byte-level with bos": lambda: byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True),
    "plain, sentencepiece": sentence_piece,
    "plain, words": word_level,
}
CONVERSATIONS = {
    "one turn": talk("user: What is two plus three?", "assistant: The answer is five."),
    "number": talk("user: How many apples?", "assistant: 42"),
    "empty reply": talk("user: What is two", "assistant:"),
    "system": talk("system: Be brief.", "user: What is two", "assistant: five"),
    "turns": talk("user: two", "assistant: three", "user: What is two plus three?", "assistant: five"),
    "role words": talk("user: user", "assistant: model", "user: assistant", "assistant: system"),
    "beyond ascii": talk("user: café €?", "assistant: 12.50 € naïve"),
}


def make(name):
    if name in PLAIN:
        return make_template("plain", PLAIN[name](), prompt="What is {question} Answer:")
    return make_template("chat", FAMILIES[name].tokenizer(), **FAMILIES[name].settings)


def accepts(name, messages):
    if name in PLAIN:
        return len(messages) == 2
    return FAMILIES[name].takes_system or messages[0].role != "system"


MADE = {name: make(name) for name in [*FAMILIES, *PLAIN]}
CASES = [(name, talked) for name in MADE for talked in CONVERSATIONS]
each_template = pytest.mark.parametrize("template", MADE.values(), ids=MADE.keys())
each_case = pytest.mark.parametrize(
    ("template", "messages"),
    [
        pytest.param(MADE[name], CONVERSATIONS[talked], id=f"{name}, {talked}")
        for name, talked in CASES
        if accepts(name, CONVERSATIONS[talked])
    ],
)
each_refusal = pytest.mark.parametrize(
    ("template", "messages"),
    [
        pytest.param(MADE[name], CONVERSATIONS[talked], id=f"{name}, {talked}")
        for name, talked in CASES
        if not accepts(name, CONVERSATIONS[talked])
    ],
)


@each_case
def test_what_is_seen_at_sampling_begins_what_is_trained_on(template, messages):
    prompt = template.encode_prompt(messages[:-1])
    assert len(prompt) > 0
    assert template.encode_conversation(messages).tokens[: len(prompt)] == prompt


@each_case
def test_the_reply_and_its_stop_token_are_trained_and_nothing_after(template, messages):
    encoded = template.encode_conversation(messages)
    start = len(template.encode_prompt(messages[:-1]))
    end = next(n for n in range(start, len(encoded.tokens)) if encoded.tokens[n] in template.stop_tokens)
    assert encoded.trained[start:] == (True,) * (end + 1 - start) + (False,) * (len(encoded.tokens) - end - 1)
    assert set(encoded.roles[start : end + 1]) == {"assistant"}
    assert set(encoded.roles[end + 1 :]) <= {"template"}


@each_case
def test_earlier_replies_are_trained_alike_or_not_at_all(template, messages):
    encoded = template.encode_conversation(messages)
    expected = [False] * len(encoded.tokens)
    every_turn = getattr(template, "train", "all") == "all"
    for turn in [n for n, m in enumerate(messages) if m.role == "assistant" and (every_turn or n == len(messages) - 1)]:
        start = len(template.encode_prompt(messages[:turn]))
        end = next(n for n in range(start, len(expected)) if encoded.tokens[n] in template.stop_tokens)
        expected[start : end + 1] = [True] * (end + 1 - start)
    assert encoded.trained == tuple(expected)


@each_case
def test_decoding_a_reply_gives_its_text_without_the_stop_token(template, messages):
    encoded = template.encode_conversation(messages)
    start = len(template.encode_prompt(messages[:-1]))
    reply = [token for token, trained in zip(encoded.tokens[start:], encoded.trained[start:], strict=True) if trained]
    text = template.decode(reply)
    keeps_text = template is not MADE["plain, words"]  # which loses spaces and rare words
    assert text.strip() == messages[-1].content or not keeps_text
    assert template.decode(reply[:-1]) == text


@each_case
def test_one_piece_a_token(template, messages):
    tokens = template.encode_conversation(messages).tokens
    pieces = template.pieces(tokens)
    assert len(pieces) == len(tokens)
    assert all(isinstance(piece, str) for piece in pieces)


@each_case
def test_at_most_one_bos_and_only_in_front(template, messages):
    bos = template.tokenizer.bos_token_id
    tokens = template.encode_conversation(messages).tokens
    again = [n for n, token in enumerate(tokens) if token == bos]
    begins_turns = template.tokenizer.bos_token == "<s>" and template.name == "chat"  # Llama-2 opens each exchange so
    assert again in ([], [0]) or begins_turns
    assert tokens[:2] != (bos, bos)


@each_template
def test_fingerprints_repeat(template):
    settings = {"prompt": template.prompt} if template.name == "plain" else {"train": template.train}
    assert make_template(template.name, template.tokenizer, **settings).fingerprint == template.fingerprint


@each_template
@pytest.mark.parametrize("messages_to_refuse", [(), talk("user: two")])
def test_a_conversation_ends_with_the_assistant(template, messages_to_refuse):
    with pytest.raises(TemplateError, match="the last from the assistant"):
        template.encode_conversation(messages_to_refuse)


@each_template
@pytest.mark.parametrize("messages_to_refuse", [(), talk("user: two", "assistant: three")])
def test_a_prompt_does_not_end_with_the_assistant(template, messages_to_refuse):
    with pytest.raises(TemplateError, match="the last not from the assistant"):
        template.encode_prompt(messages_to_refuse)


@each_template
def test_a_stop_token_inside_a_reply_is_refused(template):
    stop = template.tokenizer.convert_ids_to_tokens(min(template.stop_tokens))
    with pytest.raises(TemplateError, match="inside a reply"):
        template.encode_conversation(talk("user: two", f"assistant: three {stop} four"))


@each_refusal
def test_messages_that_a_template_cannot_hold_are_refused(template, messages):
    with pytest.raises(TemplateError):
        template.encode_conversation(messages)
