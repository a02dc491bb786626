from __future__ import annotations

import pytest
from transformers import GenerationConfig

from lydian.errors import RecipeError, TemplateError
from lydian.text.template import PlainTemplate
from tests.text.families import byte_level, sentence_piece, talk, word_level


def with_bos():
    return byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True)


def names(template, tokens):
    return template.tokenizer.convert_ids_to_tokens(list(tokens))


def test_a_question_and_its_reply_in_words():
    """One token a word: prompt `What is two ? Answer`, reply `five`, the stop token; unknown words are <unk>."""
    template = PlainTemplate(word_level(), prompt="What is {question} The answer")
    encoded = template.encode_conversation(talk("user: two plus", "assistant: five ."))
    assert names(template, encoded.tokens) == ["What", "is", "two", "plus", "The", "answer", "five", ".", "<eos>"]
    assert encoded.trained == (False,) * 6 + (True,) * 3
    assert encoded.roles == ("template",) * 2 + ("user",) * 2 + ("template",) * 2 + ("assistant",) * 3


def test_braces_other_than_the_question_mean_themselves():
    r"""Prompts of mathematics hold `\boxed{}`; and a question with `{question}` in it is not filled a second time."""
    template = PlainTemplate(byte_level(), prompt=r"{question} Answer in \boxed{}:")
    ids = template.encode_prompt(talk("user: What is {question} {x}?"))
    assert template.decode(ids) == r"What is {question} {x}? Answer in \boxed{}:"


def test_a_word_is_not_merged_across_the_boundary():
    """`apples` is one token; the prompt `app` and the reply `les` stay apart."""
    template = PlainTemplate(byte_level(), prompt="{question}")
    assert len(template.encode_prompt(talk("user: apples"))) < len(template.encode_prompt(talk("user: app"))) + 2
    prompt = template.encode_prompt(talk("user: Tom has app"))
    encoded = template.encode_conversation(talk("user: Tom has app", "assistant: les"))
    assert encoded.tokens[: len(prompt)] == prompt
    assert template.decode(encoded.tokens[len(prompt) :]) == "les"
    assert encoded.trained.index(True) == len(prompt)


def test_plain_text_trains_all_but_the_first_token():
    template = PlainTemplate(word_level())
    encoded = template.encode_conversation(talk("assistant: What is two"))
    assert names(template, encoded.tokens) == ["What", "is", "two", "<eos>"]
    assert encoded.trained == (False, True, True, True)
    assert encoded.roles == ("assistant",) * 4


def test_plain_text_after_a_bos_trains_its_first_word():
    template = PlainTemplate(with_bos())
    encoded = template.encode_conversation(talk("assistant: two"))
    assert names(template, encoded.tokens)[0] == "<s>"
    assert encoded.trained == (False,) + (True,) * (len(encoded.tokens) - 1)
    assert encoded.roles == ("template",) + ("assistant",) * (len(encoded.tokens) - 1)
    assert template.decode(encoded.tokens[1:]) == "two"


def test_an_empty_reply_trains_the_stop_token_alone():
    template = PlainTemplate(word_level())
    encoded = template.encode_conversation(talk("user: two", "assistant:"))
    assert names(template, encoded.tokens) == ["two", "<eos>"]
    assert encoded.trained == (False, True)


def test_an_empty_text_is_refused():
    with pytest.raises(TemplateError, match="no trained token"):
        PlainTemplate(word_level()).encode_conversation(talk("assistant:"))


@pytest.mark.parametrize("encode", ["encode_prompt", "encode_conversation"])
def test_an_empty_prompt_is_refused(encode):
    messages = talk("user:") if encode == "encode_prompt" else talk("user:", "assistant: two")
    with pytest.raises(TemplateError, match="a prompt without tokens"):
        getattr(PlainTemplate(word_level()), encode)(messages)


def test_a_bos_alone_is_a_prompt():
    assert PlainTemplate(with_bos()).encode_prompt(talk("user:")) == (0,)


@pytest.mark.parametrize("lines", [["system: Be brief.", "user: two"], ["user: two", "assistant: three", "user: one"]])
def test_messages_that_it_would_lose_are_refused(lines):
    with pytest.raises(TemplateError, match="expected one message from the user"):
        PlainTemplate(word_level()).encode_prompt(talk(*lines))


def test_the_stop_token_can_be_named():
    """Specials get the first ids: <|end|> 0, ### 1; those of the generation configuration only stop."""
    tokenizer = byte_level(specials=("<|end|>", "###"))
    template = PlainTemplate(tokenizer, stop="###", generation_config=GenerationConfig(eos_token_id=[5]))
    assert template.stop_tokens == {0, 1, 5}
    assert template.encode_conversation(talk("user: two", "assistant: five")).tokens[-1] == 1
    with pytest.raises(TemplateError, match="'<nope>', which is no token of it"):
        PlainTemplate(tokenizer, stop="<nope>")
    with pytest.raises(TemplateError, match="without EOS"):
        PlainTemplate(byte_level(eos=None))


@pytest.mark.parametrize("prompt", ["What is two", "{question} {question}", "{queston}"])
def test_the_prompt_has_the_question_once(prompt):
    with pytest.raises(RecipeError, match=r"template\.prompt"):
        PlainTemplate(word_level(), prompt=prompt)


def test_the_fingerprint_follows_the_prompt_the_stop_and_the_tokenizer():
    tokenizer = byte_level(specials=("<|end|>", "###"))
    templates = [
        PlainTemplate(tokenizer),
        PlainTemplate(tokenizer, prompt="{question} "),
        PlainTemplate(tokenizer, stop="###"),
        PlainTemplate(sentence_piece()),
    ]
    assert len({t.fingerprint for t in templates}) == 4
