from __future__ import annotations

import pytest

from lydian.errors import RecipeError
from lydian.text.template import ChatTemplate, PlainTemplate, make_template
from tests.text.families import CHATML, CHATML_TOKENS, byte_level, word_level


def test_kinds():
    tokenizer = byte_level(CHATML, eos="<|im_end|>", **CHATML_TOKENS)
    chat = make_template("chat", tokenizer, system="Be brief.", train="last")
    assert isinstance(chat, ChatTemplate) and (chat.name, chat.system, chat.train) == ("chat", "Be brief.", "last")
    plain = make_template("plain", word_level(), prompt="Q {question}")
    assert isinstance(plain, PlainTemplate) and (plain.name, plain.prompt) == ("plain", "Q {question}")


def test_another_kind_is_refused():
    with pytest.raises(RecipeError, match="'chta'; expected 'chat' or 'plain'"):
        make_template("chta", word_level())
