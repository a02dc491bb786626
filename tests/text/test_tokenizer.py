from __future__ import annotations

import pytest
from transformers import GenerationConfig

from lydian.errors import TemplateError
from lydian.text.tokenizer import (
    Codec,
    added_bos,
    end_of_turn,
    eos_tokens,
    stop_tokens,
    token_pieces,
    tokenizer_fingerprint,
)
from tests.text.families import CHATML, CHATML_TOKENS, FAMILIES, byte_level, sentence_piece, word_level


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_turn_is_found_from_the_chat_template(name):
    tokenizer = FAMILIES[name].tokenizer()
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer)) == FAMILIES[name].stop


def test_stop_tokens_unite_eos_generation_config_and_end_of_turn():
    """ids by order of the specials: <|endoftext|> 0 (eos), <|im_start|> 1, <|im_end|> 2; the config adds 7 and 9."""
    tokenizer = byte_level(CHATML, eos="<|endoftext|>", **CHATML_TOKENS)
    assert stop_tokens(tokenizer) == {0, 2}
    assert stop_tokens(tokenizer, GenerationConfig(eos_token_id=[7, 9])) == {0, 2, 7, 9}
    assert eos_tokens(tokenizer, GenerationConfig(eos_token_id=7)) == {0, 7}
    assert end_of_turn(word_level()) is None


def test_a_template_that_ends_turns_with_text_only_has_no_end_of_turn():
    tokenizer = byte_level("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert end_of_turn(tokenizer) is None
    assert stop_tokens(tokenizer) == {tokenizer.eos_token_id}


def test_bos_is_a_fact_only_where_the_tokenizer_puts_it():
    assert added_bos(sentence_piece()) == 1
    assert added_bos(byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True)) == 0
    assert added_bos(byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>")) is None
    assert added_bos(byte_level()) is None


def test_one_bos_whether_or_not_the_text_has_it():
    tokenizer = byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True)
    codec = Codec(tokenizer, frozenset({1}))
    assert codec.encode("<s>two").ids == codec.encode("two").ids
    assert codec.encode("two").ids[0] == 0 and 0 not in codec.encode("two").ids[1:]
    assert codec.encode("two").spans[0] == (0, 0)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_two_bos_are_refused(adds_bos):
    tokenizer = byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=adds_bos)
    with pytest.raises(TemplateError, match="two BOS tokens"):
        Codec(tokenizer, frozenset({1})).encode("<s><s>two")


def test_no_token_merges_across_a_cut():
    r"""`\n\n` is one token; a prompt that ends in the first `\n` keeps the token that it has without the second."""
    codec = Codec(byte_level(), frozenset())
    line, two_lines = codec.encode("\n").ids, codec.encode("\n\n").ids
    assert len(two_lines) == 1 and two_lines != line
    tokens = codec.encode_apart("How\n\nmany", [4])
    assert tokens.ids == codec.encode("How\n").ids + line + codec.encode("many").ids
    assert tokens.num_beginning_before(4) == len(codec.encode("How\n").ids)
    assert tokens.spans[-1][1] == 9


def test_a_prompt_keeps_its_tokens_where_what_follows_would_split_them():
    r"""Byte-level splitting takes `\n\n` at the end of a text as one piece, but before a word as two."""
    codec = Codec(byte_level(), frozenset())
    together, apart = codec.encode("How\n\nmany").ids, codec.encode_apart("How\n\nmany", [5]).ids
    assert together != apart
    assert apart == codec.encode("How\n\n").ids + codec.encode("many").ids


def test_without_need_nothing_is_split():
    """`How` and ` many` are apart anyway; in SentencePiece the text after the cut would gain a space on its own."""
    for tokenizer in (byte_level(), sentence_piece()):
        codec = Codec(tokenizer, frozenset())
        assert codec.encode_apart("How many", [3]) == codec.encode("How many")


def test_text_that_reads_otherwise_on_its_own_is_refused():
    """SentencePiece puts a space before every text: `What is tw` and `o` would come back as `What is tw o`."""
    with pytest.raises(TemplateError, match="the end of the prompt 'What is tw' to the beginning of the reply 'o'"):
        Codec(sentence_piece(), frozenset()).encode_apart("What is two", [10])


@pytest.mark.parametrize("name", ["chatml", "llama 3", "gemma", "mistral"])
def test_cuts_anywhere_keep_the_prefix_and_the_text(name):
    r"""Two cuts through line breaks, words, special tokens, and a character of three bytes (not through the BOS)."""
    family = FAMILIES[name]
    codec = Codec(family.tokenizer(), frozenset())
    text = family.opening + "12.50 €\n\nHow" + family.closing + "How many"
    reply = len(family.opening)
    for cut in (reply - 20, *range(reply - 3, reply + 3)):
        for later in range(reply + 3, len(text)):
            tokens = codec.encode_apart(text, [cut, later])
            for place in (cut, later):
                before = codec.encode_apart(text[:place], [cut]).ids
                assert tokens.ids[: len(before)] == before
                assert tokens.num_beginning_before(place) == len(before)
            assert codec.decode(tokens.ids) == text


def test_decode_removes_one_stop_token_from_the_end_only():
    codec = Codec(byte_level(), frozenset({0}))
    two = codec.encode("two").ids
    assert codec.decode((*two, 0)) == "two"
    assert codec.decode(two) == "two"
    assert codec.decode((0, *two, 0, 0)) == "<|end|>two<|end|>"
    assert codec.decode(()) == ""


def test_pieces_join_to_the_text_and_show_parts_of_characters_as_bytes():
    r"""😀 is F0 9F 98 80 in UTF-8; no merge was learnt for it, so each byte is a token."""
    tokenizer = byte_level()
    text = "Tom has café 12.50 €\n\n"
    assert "".join(token_pieces(tokenizer, tokenizer(text)["input_ids"])) == text
    assert token_pieces(tokenizer, tokenizer("😀")["input_ids"]) == [r"\xf0", r"\x9f", r"\x98", r"\x80"]
    assert token_pieces(tokenizer, [0, 10**6]) == ["<|end|>", "[1000000]"]


def test_pieces_of_sentencepiece_and_of_words():
    r"""`~` is in no training sentence: SentencePiece falls back to its byte 7E, 😀 to four bytes, words to <unk>."""
    pieces = sentence_piece()
    assert (
        "".join(token_pieces(pieces, pieces("What is two~", add_special_tokens=False)["input_ids"])) == " What is two~"
    )
    emoji = token_pieces(pieces, pieces("😀", add_special_tokens=False)["input_ids"])
    assert emoji[-4:] == [r"\xf0", r"\x9f", r"\x98", r"\x80"]
    words = word_level()
    assert token_pieces(words, words("two ~")["input_ids"]) == ["two", "<unk>"]


def test_the_fingerprint_is_of_the_tokenizer_not_of_how_it_was_called(tmp_path):
    tokenizer = byte_level(pad="<|end|>")
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["two", "two plus three"], padding=True, truncation=True, max_length=4)
    assert tokenizer_fingerprint(tokenizer) == before
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_fingerprint(type(tokenizer).from_pretrained(tmp_path)) == before


def test_the_fingerprint_tells_tokenizers_apart():
    tokenizers = [
        byte_level(),
        byte_level(specials=("<|stop|>",), eos="<|stop|>"),
        byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>"),
        byte_level(specials=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True),
        sentence_piece(),
        word_level(),
    ]
    assert len({tokenizer_fingerprint(t) for t in tokenizers}) == len(tokenizers)


class _Slow:
    is_fast = False
    name_or_path = "slow"


def test_a_tokenizer_without_spans_is_refused():
    with pytest.raises(TemplateError, match="fast tokenizer"):
        Codec(_Slow(), frozenset())
