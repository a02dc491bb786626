"""Constraints of IFBench on how many sentences there are, how long they are, and how they begin and end.

Source: Pyatkin et al., Generalizing Verifiable Instruction Following (IFBench), arXiv:2507.02833, appendix.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from lydian.verifiers.constraints.prose import sentences, words
from lydian.verifiers.constraints.table import constraint


def _marks(reply: str) -> Counter[str]:
    """How many sentences end with each of `.`, `?`, `!`."""
    return Counter(re.sub(r"""["'”’)\]*_]+$""", "", sentence)[-1:] for sentence in sentences(reply))


@constraint(
    "count:counting_composition",
    kept=[
        ({"num_paragraphs": 1, "num_sentences": 1, "num_words": 2}, "Cats run."),
        ({"num_sentences": 2, "num_words": 2}, "Cats run. Dogs don't.\n***\nI am. You are.\n***\nWe go. They stay."),
    ],
    broken=[({"num_sentences": 1, "num_words": 2}, "Cats run fast.")],
    renamed={"n_sent": "num_sentences", "n_words": "num_words", "n_par": "num_paragraphs"},
)
def counting_composition(reply: str, *, num_sentences: int, num_words: int, num_paragraphs: int = 0) -> str:
    """Each paragraph (between `***`) has so many sentences, each sentence so many words; 0 paragraphs: any number."""
    parts = [part for part in re.split(r"(?<!\*)\*\*\*(?!\*)", reply) if part.strip()]
    if num_paragraphs and len(parts) != num_paragraphs:
        return f"{len(parts)} paragraphs, not {num_paragraphs}"
    for part in parts:
        found = sentences(part)
        if len(found) != num_sentences:
            return f"a paragraph of {len(found)} sentences, not {num_sentences}"
        wrong = [len(words(sentence)) for sentence in found if len(words(sentence)) != num_words]
        if wrong:
            return f"a sentence of {wrong[0]} words, not {num_words}"
    return "" if parts else "no paragraph"


@constraint(
    "sentence:increment",
    kept=[({"step": 2}, "Go. Cats run home.")],
    broken=[({"step": 2}, "Go. Cats run.")],
    renamed={"small_n": "step"},
)
def sentence_increment(reply: str, *, step: int) -> str:
    """Each sentence but the first has exactly `step` words more than the one before."""
    lengths = [len(words(sentence)) for sentence in sentences(reply)]
    wrong = [b for a, b in pairwise(lengths) if b - a != step]
    return f"a sentence of {wrong[0]} words does not have {step} more than the one before" if wrong else ""


@constraint("ratio:sentence_type", kept=[({}, "One. Two. Three?")], broken=[({}, "One. Two?"), ({}, "Go!")])
def two_statements_a_question(reply: str) -> str:
    """Twice as many sentences end in a full stop as in a question mark, and at least one ends in that."""
    marks = _marks(reply)
    is_right = marks["?"] > 0 and marks["."] == 2 * marks["?"]
    return "" if is_right else f"{marks['.']} statements and {marks['?']} questions, not 2 to 1"


@constraint("ratio:sentence_balance", kept=[({}, "One. Two? Three!")], broken=[({}, "One. Two?"), ({}, "One")])
def balanced_sentences(reply: str) -> str:
    """As many sentences end in a full stop as in a question mark and in an exclamation mark; each occurs."""
    marks = _marks(reply)
    is_right = marks["."] == marks["?"] == marks["!"] > 0
    return "" if is_right else f"{marks['.']} end in '.', {marks['?']} in '?', {marks['!']} in '!'"


@constraint(
    "custom:sentence_alphabet",
    kept=[({}, " ".join(f"{chr(65 + i)}x ran." for i in range(26)))],
    broken=[({}, "Ann ran. Bob ran.")],
)
def alphabet_sentences(reply: str) -> str:
    """There are 26 sentences, which begin with the letters A to Z in turn, in either case."""
    initials = "".join(word[0][0].casefold() for word in map(words, sentences(reply)))
    return "" if initials == "abcdefghijklmnopqrstuvwxyz" else "not 26 sentences that begin with A to Z in turn"
