"""Constraints of IFBench on words and sentences, by its ids and parameters; what a word is, `constraint_prose` says.

Left out, since a rule cannot tell: words:start_verb and words:odd_even_syllables.

Source: Pyatkin et al., Generalizing Verifiable Instruction Following (IFBench), arXiv:2507.02833, appendix.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from lydian.verifiers.constraints.language import COMMON_ENGLISH
from lydian.verifiers.constraints.prose import phrase, sentences, words
from lydian.verifiers.constraints.table import compared, constraint

_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d+(?:[.,]\d+)*(?!\w)")
_CLUSTER = re.compile(r"[bcdfghj-np-tv-z]{2}")
_PRONOUNS = frozenset(
    word
    for group in (
        "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her",
        "hers herself it its itself they them their theirs themselves this that these those who whom whose which what",
        "whoever whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing",
        "somebody someone something each either neither both all some any none",
    )
    for word in group.split()
)
_CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
_NAMES = tuple(
    name
    for group in (
        "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin",
        "Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan",
        "Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph",
        "Claire Ryan Stella Jonathan",
    )
    for name in group.split()
)


def _lower(text: str) -> list[str]:
    return [word.casefold() for word in words(text)]


@constraint(
    "count:word_count_range",
    kept=[({"min_words": 2, "max_words": 3}, "Cats don't run.")],
    broken=[({"min_words": 2, "max_words": 3}, "Run.")],
)
def word_range(reply: str, *, min_words: int, max_words: int) -> str:
    """The number of words is from `min_words` to `max_words`."""
    count = len(words(reply))
    return "" if min_words <= count <= max_words else f"{count} words, not {min_words} to {max_words}"


@constraint(
    "count:unique_word_count",
    kept=[({"num_words": 2}, "Run, run, cat!")],
    broken=[({"num_words": 3}, "Run, run, cat!")],
    renamed={"N": "num_words"},
)
def unique_words(reply: str, *, num_words: int, relation: str = "at least") -> str:
    """The number of different words, whatever their case, is `relation` `num_words`, such as "at least" 9."""
    return compared(len(set(_lower(reply))), relation, num_words, "different words")


@constraint(
    "count:numbers",
    kept=[({"num_numbers": 2}, "It is 3.50 or 1,000.")],
    broken=[({"num_numbers": 2}, "B2 and 3 and 4 and 5.")],
    renamed={"N": "num_numbers"},
)
def number_count(reply: str, *, num_numbers: int, relation: str = "exactly") -> str:
    """The number of numbers in digits (1,000 is one) is `relation` `num_numbers`, such as "exactly" 3."""
    return compared(len(_NUMBER.findall(reply)), relation, num_numbers, "numbers")


@constraint(
    "count:conjunctions",
    kept=[({"num_kinds": 2}, "Cats and dogs, but no cows.")],
    broken=[({"num_kinds": 2}, "Sand and land and butter.")],
    renamed={"small_n": "num_kinds"},
)
def conjunctions(reply: str, *, num_kinds: int) -> str:
    """At least `num_kinds` different ones of and, but, for, nor, or, so, yet occur."""
    return compared(len(_CONJUNCTIONS & set(_lower(reply))), "at least", num_kinds, "different conjunctions")


@constraint(
    "count:pronouns",
    kept=[({"num_pronouns": 2}, "I saw her.")],
    broken=[({"num_pronouns": 2}, "Ushers saw her.")],
    renamed={"N": "num_pronouns"},
)
def pronouns(reply: str, *, num_pronouns: int) -> str:
    """At least `num_pronouns` pronouns occur; one that occurs twice counts twice."""
    return compared(sum(word in _PRONOUNS for word in _lower(reply)), "at least", num_pronouns, "pronouns")


@constraint("count:punctuation", kept=[({}, "A, b; c: d! E? F. G?!")], broken=[({}, "A, b; c: d. G?!")])
def all_punctuation(reply: str) -> str:
    """Each of . , ! ? ; : and apart from these an interrobang."""
    rest = re.sub(r"\?!|!\?|‽", "", reply, count=1)
    missing = [mark for mark in ".,!?;:" if mark not in rest]
    if rest == reply:
        return "no '?!'"
    return f"no {missing[0]!r}" if missing else ""


@constraint(
    "count:keywords_multiple",
    kept=[({"keyword1": "art", "keyword2": "sun"}, "Art. Sun and sun.")],
    broken=[({"keyword1": "art"}, "Start smart."), ({"keyword1": "art"}, "Art, art."), ({"keyword1": "a b"}, "b")],
)
def keywords_multiple(
    reply: str, *, keyword1: str, keyword2: str = "", keyword3: str = "", keyword4: str = "", keyword5: str = ""
) -> str:
    """The keywords occur once, twice, three times, five times and seven times."""
    wanted = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    faults = (
        compared(len(phrase(keyword).findall(reply)), "exactly", count, f"{keyword!r:.40}")
        for keyword, count in wanted
        if keyword
    )
    return next(filter(None, faults), "")


@constraint(
    "words:words_position",
    kept=[({"keyword": "whisper"}, "The whisper became a soft whisper again.")],
    broken=[({"keyword": "whisper"}, "The whisper became a soft whisper."), ({"keyword": "a"}, "a")],
)
def second_and_second_last_word(reply: str, *, keyword: str) -> str:
    """The second word and the second-to-last word are both `keyword`, in either case."""
    found = _lower(reply)
    is_right = len(found) > 1 and found[1] == found[-2] == keyword.strip().casefold()
    return "" if is_right else f"second and second-to-last word are not both {keyword!r:.40}"


@constraint(
    "words:keywords_specific_position",
    kept=[({"keyword": "b", "sentence": 2, "word": 2}, "Yes. A b c.")],
    broken=[({"keyword": "b", "sentence": 3, "word": 1}, "Yes. A b c.")],
    renamed={"n": "sentence", "m": "word"},
)
def keyword_position(reply: str, *, keyword: str, sentence: int, word: int) -> str:
    """Word number `word` of sentence number `sentence`, both counted from 1, is `keyword`, in either case."""
    if not (sentence and word):
        raise ValueError("sentences and words are counted from 1")
    found = sentences(reply)
    inside = _lower(found[sentence - 1]) if sentence <= len(found) else []
    is_right = word <= len(inside) and inside[word - 1] == keyword.strip().casefold()
    return "" if is_right else f"word {word} of sentence {sentence} is not {keyword!r:.40}"


@constraint(
    "sentence:keyword",
    kept=[({"keyword": "sun", "sentence": 2}, "Hm. The sun!")],
    broken=[({"keyword": "sun", "sentence": 2}, "The sun! Sunny.")],
    renamed={"word": "keyword", "N": "sentence"},
)
def keyword_in_sentence(reply: str, *, keyword: str, sentence: int) -> str:
    """Sentence number `sentence`, counted from 1, has `keyword` as a whole word, in either case."""
    if not sentence:
        raise ValueError("sentences are counted from 1")
    found = sentences(reply)
    is_right = sentence <= len(found) and phrase(keyword).search(found[sentence - 1])
    return "" if is_right else f"sentence {sentence} has no {keyword!r:.40}"


@constraint("words:alphabet", kept=[({}, "Yes, Zebras are big.")], broken=[({}, "Yes, no.")])
def alphabet_words(reply: str) -> str:
    """Each word begins with the letter after the last one's first letter; A follows Z."""
    letters = [ord(word[0]) - ord("a") for word in _lower(reply)]
    is_latin = all(0 <= letter < 26 for letter in letters)
    is_right = bool(letters) and is_latin and all((b - a) % 26 == 1 for a, b in pairwise(letters))
    return "" if is_right else "words do not begin with consecutive letters"


@constraint("words:no_consecutive", kept=[({}, "One big cat.")], broken=[({}, "One cool cat.")])
def no_alliteration(reply: str) -> str:
    """No word begins with the same letter as the word before it."""
    same = [a for a, b in pairwise(_lower(reply)) if a[0] == b[0]]
    return f"the word after {same[0]!r:.40} begins alike" if same else ""


@constraint(
    "words:repeats",
    kept=[({"max_repeats": 2}, "No, no, yes.")],
    broken=[({"max_repeats": 2}, "No, no, no.")],
    renamed={"small_n": "max_repeats"},
)
def word_repeats(reply: str, *, max_repeats: int) -> str:
    """No word, whatever its case, occurs more than `max_repeats` times."""
    often = [word for word, count in Counter(_lower(reply)).items() if count > max_repeats]
    return f"{often[0]!r:.40} occurs more than {max_repeats} times" if often else ""


@constraint("words:palindrome", kept=[({"min_palindromes": 1}, "A level road.")], broken=[({}, "A level road.")])
def palindromes(reply: str, *, min_palindromes: int = 10, min_letters: int = 5) -> str:
    """At least `min_palindromes` different words of `min_letters` letters or more read the same backwards."""
    found = {word for word in _lower(reply) if len(word) >= min_letters and word == word[::-1]}
    return compared(len(found), "at least", min_palindromes, "palindromes")


@constraint("words:prime_lengths", kept=[({}, "The cat is blind.")], broken=[({}, "A cat.")])
def prime_lengths(reply: str) -> str:
    """The length of each word, in characters, is a prime."""
    wrong = [word for word in words(reply) if len(word) < 2 or any(len(word) % n == 0 for n in range(2, len(word)))]
    return f"the length of {wrong[0]!r:.40} is no prime" if wrong else ""


@constraint("words:last_first", kept=[({}, "I see cats. Cats run.")], broken=[({}, "I see cats. Dogs run.")])
def last_first_sentence(reply: str) -> str:
    """Each sentence but the first begins with the last word of the one before, in either case."""
    return _last_first(sentences(reply))


@constraint(
    "words:paragraph_last_first",
    kept=[({}, "Home is home.\n\nSun in the sun")],
    broken=[({}, "Home is here.")],
)
def last_first_paragraph(reply: str) -> str:
    """Paragraphs are lines."""
    found = [inside for inside in map(_lower, reply.split("\n")) if inside]
    wrong = [inside for inside in found if inside[0] != inside[-1]]
    return "a paragraph does not end with its first word" if wrong or not found else ""


def _last_first(parts: list[str]) -> str:
    found = [_lower(part) for part in parts]
    wrong = [b[0] for a, b in pairwise(found) if a[-1] != b[0]]
    return f"{wrong[0]!r:.40} is not the last word before it" if wrong else ""


@constraint(
    "ratio:stop_words",
    kept=[({"percentage": 50}, "The cat sat on mats.")],
    broken=[({"percentage": 20}, "The cat is in it.")],
)
def stop_words(reply: str, *, percentage: float) -> str:
    """At most so many in a hundred words are English stop words."""
    found = _lower(reply)
    share = 100 * sum(word in COMMON_ENGLISH for word in found) / max(len(found), 1)
    return compared(share, "at most", percentage, "% stop words") if found else "no words"


@constraint(
    "ratio:overlap",
    kept=[({"reference": "a b c d", "percentage": 50}, "A b c x")],
    broken=[({"reference": "a b c d", "percentage": 50}, "a b c d")],
    renamed={"reference_text": "reference"},
)
def trigram_overlap(reply: str, *, reference: str, percentage: float, tolerance: float = 2.0) -> str:
    """So many in a hundred different trigrams of words are the reference's, give or take the tolerance."""
    found, known = _trigrams(reply), _trigrams(reference)
    share = 100 * len(found & known) / len(found) if found else -1000.0
    return "" if abs(share - percentage) <= tolerance else f"an overlap of {share:.0f} %, not {percentage:g} %"


def _trigrams(text: str) -> set[tuple[str, ...]]:
    found = _lower(text)
    return set(zip(found, found[1:], found[2:], strict=False))


@constraint(
    "count:person_names",
    kept=[({"num_names": 2}, "Emma met Leo.")],
    broken=[({"num_names": 2}, "Emma met Leonardo.")],
    renamed={"N": "num_names"},
)
def person_names(reply: str, *, num_names: int) -> str:
    """At least `num_names` different names of `_NAMES` occur, capitals as there."""
    found = set(words(reply.replace("'s", ""))) & set(_NAMES)
    return compared(len(found), "at least", num_names, "of the names")


@constraint("words:vowel", kept=[({}, "A big cat sat on it.")], broken=[({}, "A big hut on one"), ({}, "A\ncat")])
def three_vowels(reply: str) -> str:
    """One paragraph in which at most three of a, e, i, o, u occur."""
    if "\n" in reply.strip():
        return "more than one paragraph"
    return compared(len(set(reply.casefold()) & set("aeiou")), "at most", 3, "different vowels")


@constraint("words:consonants", kept=[({}, "Strong hands")], broken=[({}, "Strong hand, a cat")])
def consonant_clusters(reply: str) -> str:
    """Each word has two consonants (y is one) side by side."""
    wrong = [word for word in _lower(reply) if not _CLUSTER.search(word)]
    return f"{wrong[0]!r:.40} has no two consonants together" if wrong else ""


@constraint(
    "sentence:alliteration_increment",
    kept=[({}, "One cat ran. Big bad dogs. So six silly pets.")],
    broken=[({}, "Big bad dogs. One cat ran.")],
)
def rising_alliteration(reply: str) -> str:
    """Each sentence has more words that begin like a neighbour than the sentence before."""
    counts = []
    for sentence in sentences(reply):
        initials = [word[0] for word in _lower(sentence)]
        like_next = [a == b for a, b in pairwise(initials)]
        counts.append(sum(a or b for a, b in zip([False, *like_next], [*like_next, False], strict=True)))
    wrong = [b for a, b in pairwise(counts) if b <= a]
    return f"a sentence with {wrong[0]} alliterating words has no more than the one before" if wrong else ""


@constraint("ratio:sentence_words", kept=[({}, "Cats run. Dogs dig. Cows sat.")], broken=[({}, "Cats run. I run. We.")])
def three_equal_sentences(reply: str) -> str:
    """Three sentences of as many characters each, no word twice."""
    found = sentences(reply)
    if len(found) != 3 or len({len(sentence) for sentence in found}) != 1:
        return f"{len(found)} sentences with {[len(sentence) for sentence in found[:4]]} characters"
    again = [word for word, count in Counter(_lower(reply)).items() if count > 1]
    return f"{again[0]!r:.40} occurs twice" if again else ""


@constraint(
    "count:words_japanese",
    kept=[({"every": 2}, "one 二 three 日本")],
    broken=[({"every": 2}, "one two")],
    renamed={"N": "every"},
)
def japanese_words(reply: str, *, every: int) -> str:
    """Every so many-th word (between blanks) has a kana or a kanji; numbers are let pass."""
    if not every:
        raise ValueError("words are counted from 1")
    bare = [word.strip("\"'.,;:!?()[]*_") for word in reply.split()][every - 1 :: every]
    wrong = [
        word for word in bare if word and not word.isdigit() and not re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", word)
    ]
    return f"{wrong[0]!r:.40} is not Japanese" if wrong else ""
