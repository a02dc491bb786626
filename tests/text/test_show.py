from __future__ import annotations

import io

import pytest
from rich.console import Console

from lydian.text.show import plain_table, rich_table, token_table
from lydian.text.template import Encoded, PlainTemplate
from tests.text.families import talk, word_level


@pytest.fixture
def rows():
    template = PlainTemplate(word_level(), prompt="What {question}")
    return token_table(template.encode_conversation(talk("user: two", "assistant: five")), template)


def test_one_row_a_token(rows):
    shown = [(r.index, r.text, r.role, r.trained) for r in rows]
    assert shown == [
        (0, "What", "template", False),
        (1, "two", "user", False),
        (2, "five", "assistant", True),
        (3, "<eos>", "assistant", True),
    ]
    assert rows[3].id == 1  # the second special token of the vocabulary


def test_plain_rendering(rows):
    lines = plain_table(rows).splitlines()
    assert lines[0].split() == ["id", "text", "role", "trained"]
    assert lines[1].split()[2:] == ["|What|", "template"]
    assert lines[4].split() == ["3", "1", "|<eos>|", "assistant", "yes"]
    assert lines[-1] == "2 of 4 tokens are trained"
    assert len({line.index("|") for line in lines[1:5]}) == 1


def test_rich_rendering_shows_the_same(rows):
    out = io.StringIO()
    Console(file=out, width=80, color_system="truecolor", force_terminal=True).print(rich_table(rows))
    text = out.getvalue()
    assert "2 of 4 tokens are trained" in text
    assert "\x1b[1;32m|five|" in text
    assert "\x1b[1;32m|two|" not in text


def test_text_that_would_break_the_table_or_read_as_markup_is_shown_as_it_is():
    class Stub:
        def pieces(self, tokens):
            return ["\n\t", "[red]", "\x07é"]

    encoded = Encoded(tokens=(1, 2, 3), trained=(False, True, True), roles=("user",) * 3)
    rows = token_table(encoded, Stub())
    assert [r.text for r in rows] == [r"\n\t", "[red]", r"\u0007é"]
    out = io.StringIO()
    Console(file=out, width=80).print(rich_table(rows))
    assert "|[red]|" in out.getvalue()
