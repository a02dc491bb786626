from __future__ import annotations

import pytest

from lydian.errors import RecipeError, TemplateError
from lydian.text.template import ChatTemplate
from tests.text.families import (
    CHATML,
    CHATML_TOKENS,
    FAMILIES,
    LLAMA_3,
    LLAMA_3_TOKENS,
    MARKERS,
    MARKERS_WITHOUT_STOP,
    QWEN_3,
    byte_level,
    talk,
)

THOUGHTS = talk(
    "user: two",
    "assistant: <think>one and one</think>three",
    "user: What is two",
    "assistant: <think>two</think>five",
)


def chat(template, **settings):
    return ChatTemplate(byte_level(template, eos="<|im_end|>", **CHATML_TOKENS), **settings)


def text_of(template, encoded, trained):
    pieces = template.pieces(encoded.tokens)
    return "".join(piece for piece, is_trained in zip(pieces, encoded.trained, strict=True) if is_trained == trained)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_each_family_prints(name):
    """Compared with the text written out by hand from the family's published layout."""
    family = FAMILIES[name]
    template = ChatTemplate(family.tokenizer(), **family.settings)
    prompt = template.encode_prompt(talk("user: What is two"))
    encoded = template.encode_conversation(talk("user: What is two", "assistant: five"))
    text = template.tokenizer.decode(encoded.tokens)
    assert template.tokenizer.decode(prompt) == family.opening
    assert text.startswith(family.opening) and text.endswith(family.closing)
    assert text[len(family.opening) : len(text) - len(family.closing)].strip() == "five"


def test_the_mask_of_a_chatml_conversation_piece_by_piece():
    """Both replies with their stop tokens are trained; the line break after a stop token is context."""
    template = chat(CHATML)
    encoded = template.encode_conversation(talk("user: two", "assistant: three", "user: one", "assistant: five"))
    assert text_of(template, encoded, trained=True) == "three<|im_end|>five<|im_end|>"
    assert text_of(template, encoded, trained=False) == (
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
        "\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
        "\n"
    )


def test_only_the_last_turn_is_trained_if_asked():
    template = chat(CHATML, train="last")
    encoded = template.encode_conversation(talk("user: two", "assistant: three", "user: one", "assistant: five"))
    assert text_of(template, encoded, trained=True) == "five<|im_end|>"


def test_roles_come_from_where_the_contents_lie():
    """Contents that are words of the template (user, assistant) are not taken for the template's own."""
    template = chat(CHATML, train="last")
    messages = talk("system: model", "user: user", "assistant: assistant", "user: tool", "assistant: five")
    encoded = template.encode_conversation(messages)
    by_role = {
        role: "".join(p for p, r in zip(template.pieces(encoded.tokens), encoded.roles, strict=True) if r == role)
        for role in ("system", "user", "assistant")
    }
    assert by_role == {"system": "model", "user": "usertool", "assistant": "assistantfive<|im_end|>"}
    assert encoded.roles[:2] == ("template", "template")


def test_an_empty_reply_trains_the_stop_token_alone():
    template = chat(CHATML)
    encoded = template.encode_conversation(talk("user: two", "assistant:"))
    assert text_of(template, encoded, trained=True) == "<|im_end|>"


@pytest.mark.parametrize("source", [CHATML, MARKERS, MARKERS_WITHOUT_STOP])
def test_a_reply_that_begins_with_a_line_break_does_not_merge_into_the_prompt(source):
    template = chat(source)
    messages = talk("user: two", "assistant:\nfive", "user: one", "assistant:\n\nthree")
    encoded = template.encode_conversation(messages)
    for turn in (1, 3):
        prompt = template.encode_prompt(messages[:turn])
        assert encoded.tokens[: len(prompt)] == prompt
        assert template.pieces(prompt)[-1] == "\n"
    assert text_of(template, encoded, trained=True) == "\nfive<|im_end|>\n\nthree<|im_end|>"


def test_a_template_that_changes_earlier_turns_is_named_with_the_place_and_the_way_out():
    """Up to `assistant\\n` both renderings agree: 63 characters, then `<think>` against `three`."""
    with pytest.raises(TemplateError) as caught:
        chat(QWEN_3).encode_conversation(THOUGHTS)
    agreed = "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"
    message = str(caught.value)
    assert f"messages 0 to 1, character {len(agreed)}" in message
    assert "assistant\\n<think>one and one</think>three" in message
    assert "assistant\\nthree<|im_end|>" in message
    assert 'train = "last"' in message


def test_the_way_out_trains_the_last_turn_after_the_changed_history():
    template = chat(QWEN_3, train="last")
    encoded = template.encode_conversation(THOUGHTS)
    assert text_of(template, encoded, trained=True) == "<think>two</think>five<|im_end|>"
    assert "one and one" not in text_of(template, encoded, trained=False)
    prompt = template.encode_prompt(THOUGHTS[:-1])
    assert encoded.tokens[: len(prompt)] == prompt
    earlier = "".join(p for p, r in zip(template.pieces(prompt), encoded.roles, strict=False) if r == "assistant")
    assert earlier == "three"


def test_a_prompt_that_ends_unlike_replies_begin_is_refused():
    """With thinking off this template ends the prompt with an empty thought that it does not print before replies."""
    template = chat(QWEN_3, variables={"enable_thinking": False})
    assert "<think>" in template.decode(template.encode_prompt(talk("user: two")))
    with pytest.raises(TemplateError, match="the prompt of message 1, character"):
        template.encode_conversation(talk("user: two", "assistant: five"))


def test_system_message():
    """None leaves the template's default, a text replaces it, and a conversation's own is kept."""
    family = FAMILIES["chatml, default system"]
    tokenizer = family.tokenizer()
    shown = [
        t.decode(t.encode_prompt(messages)).split("<|im_end|>")[0]
        for t, messages in (
            (ChatTemplate(tokenizer), talk("user: two")),
            (ChatTemplate(tokenizer, system="Be brief."), talk("user: two")),
            (ChatTemplate(tokenizer, system=""), talk("user: two")),
            (ChatTemplate(tokenizer, system="Be brief."), talk("system: You are", "user: two")),
        )
    ]
    system = "<|im_start|>system\n"
    assert shown == [
        system + "You are a helpful assistant.",
        system + "Be brief.",
        system,
        system + "You are",
    ]


def test_a_bos_in_a_message_next_to_the_templates_own_is_refused():
    template = ChatTemplate(byte_level("{{ bos_token }}{{ messages[0].content }}", **LLAMA_3_TOKENS))
    with pytest.raises(TemplateError, match="two BOS"):
        template.encode_prompt(talk("user: <|begin_of_text|>two"))


def test_a_bos_that_the_template_does_not_print_is_added_and_counted():
    """Without its BOS the Llama-3 template gives the same ids as with it, for the tokenizer adds one."""
    messages = talk("user: two", "assistant: three", "user: one", "assistant: five")
    printed, added = (
        ChatTemplate(byte_level(source, **LLAMA_3_TOKENS)).encode_conversation(messages)
        for source in (LLAMA_3, LLAMA_3.removeprefix("{{ bos_token }}"))
    )
    assert printed == added


@pytest.mark.parametrize("bos", [{}, {"bos": "<|endoftext|>", "adds_bos": True}])
def test_markers_decide_what_is_trained(bos):
    """Of the reply this template marks what follows a colon; the stop token after the mark is trained too."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and ': ' in m.content %}"
        "{{ m.content.split(': ')[0] }}: {% generation %}{{ m.content.split(': ')[1] }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate(byte_level(source, eos="<|im_end|>", **CHATML_TOKENS, **bos))
    encoded = template.encode_conversation(talk("user: two", "assistant: two", "user: one", "assistant: answer: five"))
    assert text_of(template, encoded, trained=True).strip() == "five<|im_end|>"


def test_markers_around_the_header_do_not_train_it():
    source = MARKERS.replace(
        "<|im_start|>{{ m.role }}\n{% if", "{% if m.role != 'assistant' %}<|im_start|>{{ m.role }}\n{% endif %}{% if"
    )
    source = source.replace("{% generation %}", "{% generation %}<|im_start|>assistant\n")
    template = chat(source)
    encoded = template.encode_conversation(talk("user: two", "assistant: three", "user: one", "assistant: five"))
    assert text_of(template, encoded, trained=True) == "three<|im_end|>five<|im_end|>"


def test_markers_may_stay_where_history_changes():
    """They tell each reply's place in the final rendering, so a stripped earlier reply needs no second rendering."""
    shown = "m.content.split('</think>')[-1] if not loop.last else m.content"
    template = chat(MARKERS.replace("{{ m.content }}<|im_end|>{%", "{{ " + shown + " }}<|im_end|>{%"))
    encoded = template.encode_conversation(THOUGHTS)
    assert text_of(template, encoded, trained=True) == "three<|im_end|><think>two</think>five<|im_end|>"


def test_a_greeting_answers_nothing_and_is_not_trained():
    template = chat(CHATML)
    encoded = template.encode_conversation(talk("assistant: three", "user: two", "assistant: five"))
    assert text_of(template, encoded, trained=True) == "five<|im_end|>"


def test_no_trained_token_is_an_error_with_the_text():
    source = MARKERS.replace("m.role == 'assistant'", "m.role == 'tool'")
    with pytest.raises(TemplateError, match=r"no trained token in '<\|im_start\|>user.nWhat is two") as caught:
        chat(source).encode_conversation(talk("user: What is two", "assistant: five"))
    assert "{% generation %}" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        CHATML.replace("{{ m.content }}<|im_end|>", "{{ m.content }}"),
        CHATML.replace("<|im_end|>\n{% endfor %}", "{% if m.role == 'user' %}<|im_end|>{% endif %}\n{% endfor %}"),
        CHATML.replace("<|im_end|>\n{% endfor %}", "{% if loop.index0 != 1 %}<|im_end|>{% endif %}\n{% endfor %}"),
        MARKERS.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}"),
        MARKERS.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %} and so on<|im_end|>"),
    ],
    ids=["nowhere", "only after users", "not after the first", "markers, only after users", "markers, apart"],
)
@pytest.mark.parametrize("num_turns", [1, 2])
def test_a_reply_without_a_stop_token_is_refused(source, num_turns):
    messages = talk("user: two", "assistant: three", "user: one", "assistant: five")[: 2 * num_turns]
    with pytest.raises(TemplateError, match="no stop token right after the reply"):
        chat(source).encode_conversation(messages)


def test_what_the_template_itself_refuses_is_passed_on():
    template = ChatTemplate(FAMILIES["gemma"].tokenizer())
    with pytest.raises(TemplateError, match="System role not supported"):
        template.encode_prompt(talk("system: Be brief.", "user: two"))


def test_plain_text_and_base_models_are_sent_to_the_plain_template():
    with pytest.raises(TemplateError, match='kind = "plain"'):
        chat(CHATML).encode_conversation(talk("assistant: two"))
    with pytest.raises(TemplateError, match='kind = "plain"'):
        ChatTemplate(byte_level())
    with pytest.raises(RecipeError, match=r"template\.train"):
        chat(CHATML, train="first")


def test_the_fingerprint_follows_what_a_prompt_becomes():
    """Training on the last turn only changes no prompt; system, variables and the template's text do."""
    same = {chat(QWEN_3).fingerprint, chat(QWEN_3, train="last").fingerprint}
    other = [
        chat(QWEN_3, system="Be brief."),
        chat(QWEN_3, variables={"enable_thinking": False}),
        chat(CHATML),
        ChatTemplate(byte_level(QWEN_3, eos="<|endoftext|>", **CHATML_TOKENS)),
    ]
    assert len(same) == 1
    assert len(same | {t.fingerprint for t in other}) == 5


def test_a_template_that_prints_the_date_has_another_fingerprint_each_day():
    source = "{{ date if date is defined else strftime_now('%s%f') }}" + CHATML
    assert chat(source).fingerprint != chat(source).fingerprint
    assert (
        chat(source, variables={"date": "1 Jan"}).fingerprint == chat(source, variables={"date": "1 Jan"}).fingerprint
    )


def test_a_long_conversation():
    template = chat(CHATML)
    lines = ["user: How many apples has he now?", "assistant: Tom has 12 apples and"] * 30
    encoded = template.encode_conversation(talk(*lines))
    assert text_of(template, encoded, trained=True) == "Tom has 12 apples and<|im_end|>" * 30
