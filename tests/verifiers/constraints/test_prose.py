import pytest

from lydian.verifiers.constraints.prose import bullets, paragraphs, phrase, sentences, words


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("Cats run.", 2),
        ("I don't, won't and can’t.", 5),
        ("a state-of-the-art design", 3),
        ("3.14, 1,000 and 50%", 4),
        ("snake_case – and, dashes", 4),
        ("东京 tower", 3),
    ],
)
def test_words_as_a_person_counts_them(text: str, count: int) -> None:
    assert len(words(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("No full stop", 1),
        ("One. Two! Three? Four…", 4),
        ("Dr. Smith met Mr. and Mrs. Jones at 3.30 p.m. on Jan 5.", 1),
        ("We left at 5 p.m. Then we ate.", 2),
        ("The U.S. Army, e.g. the 1st, came.", 1),
        ("J. K. Rowling wrote it.", 1),
        ("It was I. We knew.", 2),
        ('He said "Go!" She went.', 2),
        ("Wait... what?", 2),
        ("See example.com. Now.", 2),
        ("# Title\n\nText.", 2),
        ("* one\n* two", 2),
        ("1. One thing\n2. Another", 2),
        ("你好。再见！", 2),
        ("One line\nthat goes on.", 1),
        ("He paid $3.50 etc. It was fine.", 2),
    ],
)
def test_sentences_as_a_person_counts_them(text: str, count: int) -> None:
    assert len(sentences(text)) == count, sentences(text)


def test_paragraphs_and_bullets() -> None:
    assert paragraphs("\n\n A\nB \n \t\n\n C\n") == ["A\nB", "C"]
    assert bullets("- a\n+ b\n• c\n*no\n**no**\n- - -\n***\n-5 degrees\n  * d") == ["a", "b", "c", "d"]


def test_a_phrase_is_whole_words_over_any_blanks() -> None:
    assert phrase("ice cream").search("Ice\n cream!")
    assert not phrase("ice cream").search("nice cream")
    assert len(phrase("art").findall("art, Art; start art's smart_art")) == 3
    assert phrase("$5").search("it costs $5.")
    assert not phrase("a.c").search("abc")
