from __future__ import annotations

from lydian.text.roles import message_spans, token_roles
from lydian.text.tokenizer import Tokenized
from tests.text.families import talk


def render(messages):
    """`role: content.` for each message, contents stripped, what precedes `|` in a content dropped."""
    return "".join(f"{m.role}: {m.content.split('|')[-1].strip()}." for m in messages)


def located(messages, render=render):
    text = render(messages)
    return [(text[start:end], role) for (start, end), role in message_spans(render, messages, text)]


def test_contents_lie_between_the_templates_own_words():
    messages = talk("user: user", "assistant: a.assistant: b", "user:  spaced ")
    assert located(messages) == [("user", "user"), ("a.assistant: b", "assistant"), ("spaced", "user")]


def test_a_content_that_the_template_shortens_is_found_by_what_follows():
    assert located(talk("user: two", "assistant: thought|three", "user: one")) == [
        ("two", "user"),
        ("three", "assistant"),
        ("one", "user"),
    ]


def test_a_message_that_the_template_drops_or_moves_is_left_out():
    def last_first(messages):
        return f"{messages[-1].content}/{messages[0].content}"

    assert located(talk("system: x", "user: y", "assistant: z"), last_first) == [("z", "assistant"), ("x", "system")]


def test_surroundings_that_depend_on_the_content_end_the_search():
    def counting(messages):
        return "".join(f"{len(m.content)} {m.content};" for m in messages)

    assert located(talk("user: abc", "user: x"), counting) == [("abc", "user")]  # placeholders are 3 characters long


def test_a_token_has_the_role_of_what_it_overlaps():
    """Characters 2–4 are the user's and 6–8 the assistant's; an added BOS (0, 0) is the template's."""
    tokens = Tokenized(ids=(9, 1, 2, 3, 4, 5), spans=((0, 0), (0, 2), (1, 3), (3, 4), (4, 6), (5, 9)))
    spans = [((2, 4), "user"), ((6, 8), "assistant")]
    assert token_roles(tokens, spans) == ["template", "template", "user", "user", "template", "assistant"]
