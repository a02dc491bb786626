"""The 25 kinds of IFEval and a few like them, each with replies that keep and break it.

Where the published checker is known to err, the meaning of the instruction counts: words are whole words (war is not in
"forward"), a keyword is no regular expression, thematic breaks are no bullets, blank chunks are no paragraphs.

Source: Zhou et al., Instruction-Following Evaluation for Large Language Models, arXiv:2311.07911, table 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lydian.verifiers.constraints.json_schema import NotJson, parse_json, schema_fault, value_fault
from lydian.verifiers.constraints.language import LANGUAGES, language_of
from lydian.verifiers.constraints.prose import bullets, paragraphs, parts_between, phrase, plain, sentences, words
from lydian.verifiers.constraints.table import compared, constraint

_COMMAS = re.compile("[,،、，﹐﹑､]")
_PLACEHOLDER = re.compile(r"\[(?!x\])([^\[\]\n]+)\](?!\()", re.IGNORECASE)  # neither a link nor a ticked box
_HIGHLIGHT = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])[^*\n]*(?<=[^\s*])\1(?![\w*])")
_TITLE = re.compile(r"<<([^<>\n]+)>>")
_QUOTES = {'"': '"', "“": "”", "„": "“”", "«": "»"}


# Words and letters


@constraint(
    "keywords:existence",
    kept=[({"keywords": ["war"]}, "The War ended."), ({"keywords": ["C++"]}, "Try c++, or C.")],
    broken=[({"keywords": ["war"]}, "We look forward."), ({"keywords": ["C++"]}, "The cat sat.")],
)
def keywords(reply: str, *, keywords: Sequence[str]) -> str:
    """Each of `keywords` occurs as a whole word or phrase, in either case."""
    missing = [keyword for keyword in keywords if not phrase(keyword).search(reply)]
    return f"no {missing[0]!r:.60}" if missing else ""


@constraint(
    "keywords:forbidden_words",
    kept=[({"forbidden": ["war"]}, "We look forward.")],
    broken=[({"forbidden": ["peace", "war"]}, "War!")],
    renamed={"forbidden_words": "forbidden"},
)
def forbidden_words(reply: str, *, forbidden: Sequence[str]) -> str:
    """None of `forbidden` occurs as a whole word or phrase, in either case."""
    found = [word for word in forbidden if phrase(word).search(reply)]
    return f"{found[0]!r:.60} occurs" if found else ""


@constraint(
    "keywords:frequency",
    kept=[({"keyword": "apple", "frequency": 2, "relation": "at least"}, "An apple, an Apple.")],
    broken=[({"keyword": "apple", "frequency": 2, "relation": "at least"}, "One pineapple and one apple.")],
)
def keyword_frequency(reply: str, *, keyword: str, frequency: int, relation: str = "at least") -> str:
    """`keyword` occurs as a whole word, in either case, `relation` `frequency` times, such as "at least" 3."""
    return compared(len(phrase(keyword).findall(reply)), relation, frequency, f"{keyword!r:.60}")


@constraint(
    "keywords:letter_frequency",
    kept=[({"letter": "E", "frequency": 4, "relation": "exactly"}, "every tree")],
    broken=[({"letter": "e", "frequency": 2, "relation": "less than"}, "every tree")],
    renamed={"let_frequency": "frequency", "let_relation": "relation"},
)
def letter_frequency(reply: str, *, letter: str, frequency: int, relation: str = "at least") -> str:
    """The character `letter` occurs, in either case, `relation` `frequency` times, such as "at least" 3."""
    if len(letter) != 1:
        raise ValueError(f"letter_frequency: {letter!r:.40} is not one letter")
    return compared(reply.casefold().count(letter.casefold()), relation, frequency, f"times {letter!r}")


@constraint(
    "change_case:capital_word_frequency",
    kept=[({"frequency": 2, "relation": "at least"}, "Use the BIG, RED one.")],
    broken=[({"frequency": 2, "relation": "at least"}, "Use The BIG one.")],
    renamed={"capital_frequency": "frequency", "capital_relation": "relation"},
)
def capital_words(reply: str, *, frequency: int, relation: str = "at least") -> str:
    """The number of words all in capitals is `relation` `frequency`, such as "at least" 3."""
    return compared(sum(word.isupper() for word in words(reply)), relation, frequency, "words in capitals")


@constraint(
    "change_case:english_capital",
    kept=[({}, "HELLO, WORLD! IT IS 5."), ({}, "DON'T PANIC")],
    broken=[({}, "HELLO world"), ({}, "123"), ({}, "DAS IST NICHT DIE KATZE")],
)
def all_capitals(reply: str) -> str:
    """All letters are capitals, there is at least one, and the language is English as far as can be told."""
    return _case_fault(reply, reply.isupper(), "capitals")


@constraint(
    "change_case:english_lowercase",
    kept=[({}, "hello, world: it is 5.")],
    broken=[({}, "Hello, world"), ({}, "123"), ({}, "das ist nicht die katze")],
)
def all_lowercase(reply: str) -> str:
    """All letters are lower case, there is at least one, and the language is English as far as can be told."""
    return _case_fault(reply, reply.islower(), "lower case")


def _case_fault(reply: str, is_right_case: bool, case: str) -> str:
    if not is_right_case:
        return f"not all in {case}"
    language = language_of(reply)
    return "" if language in ("en", None) else f"not English but {language}"


@constraint(
    "language:response_language",
    kept=[({"language": "de"}, "Das ist eine Katze."), ({"language": "ko"}, "안녕하세요")],
    broken=[({"language": "de"}, "This is a cat."), ({"language": "ja"}, "Hello there, 日本")],
)
def language(reply: str, *, language: str) -> str:
    """The reply is in `language`, an ISO 639-1 code such as "de"; a region after a hyphen does not count."""
    code = language.lower().split("-")[0]
    if code not in LANGUAGES:
        raise ValueError(f"language: {language!r:.40} is none of {', '.join(sorted(LANGUAGES))}")
    found = language_of(reply)
    return "" if found == code else f"the language is {found or 'unknown'}, not {code}"


# Lengths


@constraint(
    "length_constraints:number_words",
    kept=[({"num_words": 3, "relation": "less than"}, "Don't panic!")],
    broken=[({"num_words": 3, "relation": "at least"}, "Don't panic!")],
)
def number_words(reply: str, *, num_words: int, relation: str = "at least") -> str:
    """The number of words is `relation` `num_words`, such as "at least" 100."""
    return compared(len(words(reply)), relation, num_words, "words")


@constraint(
    "length_constraints:number_sentences",
    kept=[({"num_sentences": 2, "relation": "exactly"}, "Dr. No paid $3.50. Why?")],
    broken=[({"num_sentences": 3, "relation": "at least"}, "Dr. No paid $3.50. Why?")],
)
def number_sentences(reply: str, *, num_sentences: int, relation: str = "at least") -> str:
    """The number of sentences is `relation` `num_sentences`, such as "at least" 3."""
    return compared(len(sentences(reply)), relation, num_sentences, "sentences")


@constraint(
    "length_constraints:number_paragraphs",
    kept=[({"num_paragraphs": 2}, "One.\n\n***\n\nTwo."), ({"num_paragraphs": 2}, "***\nOne. *** ***Two***.\n***")],
    broken=[({"num_paragraphs": 2}, "One.\n\nTwo."), ({"num_paragraphs": 2}, "One.\n***\n***\nTwo.")],
)
def number_paragraphs(reply: str, *, num_paragraphs: int, separator: str = "***", relation: str = "exactly") -> str:
    """The paragraphs between each `separator` are `relation` `num_paragraphs`, such as "exactly" 3, none blank."""
    found = parts_between(reply, separator)
    if not all(found):
        return "a paragraph is blank"
    return compared(len(found), relation, num_paragraphs, f"paragraphs between {separator!r:.20}")


@constraint(
    kept=[({"num_paragraphs": 2}, "\n\nOne.\n\nTwo.")],
    broken=[({"num_paragraphs": 2}, "One.\nTwo.")],
)
def blank_line_paragraphs(reply: str, *, num_paragraphs: int, relation: str = "exactly") -> str:
    """The number of paragraphs between blank lines is `relation` `num_paragraphs`, such as "exactly" 3."""
    return compared(len(paragraphs(reply)), relation, num_paragraphs, "paragraphs between blank lines")


@constraint(
    "length_constraints:nth_paragraph_first_word",
    kept=[({"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "hello"}, "\n\n**Hello** there.\n\nSecond.")],
    broken=[
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hello"}, "Hello there.\n\nSecond."),
        ({"num_paragraphs": 3, "nth_paragraph": 1, "first_word": "hello"}, "Hello there.\n\nSecond."),
    ],
)
def nth_paragraph_first_word(reply: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> str:
    """Of `num_paragraphs` paragraphs between blank lines, number `nth_paragraph` begins with `first_word`."""
    if not 1 <= nth_paragraph <= num_paragraphs:
        raise ValueError(f"nth_paragraph: {nth_paragraph} is not between 1 and {num_paragraphs}")
    found = paragraphs(reply)
    if len(found) != num_paragraphs:
        return f"{len(found)} paragraphs, not {num_paragraphs}"
    first = words(found[nth_paragraph - 1])[:1]
    is_right = bool(first) and first[0].casefold() == plain(first_word).strip().casefold()
    return "" if is_right else f"paragraph {nth_paragraph} does not begin with {first_word!r:.40}"


# What must be in it


@constraint(
    "detectable_content:number_placeholders",
    kept=[({"num_placeholders": 2}, "Dear [name], at [street address]")],
    broken=[({"num_placeholders": 2}, "Dear [name], see [here](a.org): - [x] done []")],
)
def placeholders(reply: str, *, num_placeholders: int, relation: str = "at least") -> str:
    """The number of placeholders, like [name], is `relation` `num_placeholders`, such as "at least" 3."""
    found = [inner for inner in _PLACEHOLDER.findall(reply) if inner.strip()]
    return compared(len(found), relation, num_placeholders, "placeholders")


@constraint(
    "detectable_content:postscript",
    kept=[({"marker": "P.S."}, "Bye.\n\nP.S. Come!"), ({"marker": "P.P.S"}, "Bye. p.p.s: Come!")],
    broken=[({"marker": "P.S."}, "See app.s.com or P.P.S. it"), ({"marker": "P.S."}, "Bye.\nP.S.")],
    renamed={"postscript_marker": "marker"},
)
def postscript(reply: str, *, marker: str) -> str:
    """A postscript opens with `marker`, such as "P.S.", in either case, and has text after it."""
    body = r"\s?".join(re.escape(char) for char in plain(marker).strip() if not char.isspace())
    found = re.search(rf"(?<![\w.]){body}(?!\w).*\w", reply, re.IGNORECASE | re.DOTALL)
    return "" if found else f"no postscript after {marker!r:.20}"


@constraint(
    "combination:repeat_prompt",
    kept=[({"prompt": "Say hi."}, "say  hi.\n\nHi!")],
    broken=[({"prompt": "Say hi."}, "Sure! Say hi.")],
    renamed={"prompt_to_repeat": "prompt"},
)
def repeat_prompt(reply: str, *, prompt: str) -> str:
    """The reply begins with `prompt`; case and the amount of white space do not count."""

    def folded(text: str) -> str:
        return " ".join(plain(text).casefold().split())

    return "" if folded(reply).startswith(folded(prompt)) else "does not begin with the prompt"


# Layout


@constraint(
    "detectable_format:number_bullet_lists",
    kept=[({"num_bullets": 2}, "* one\n* two\n\n---\n\nDone."), ({"num_bullets": 0}, "**None.**")],
    broken=[({"num_bullets": 2}, "* one\n* two\n- three")],
)
def bullet_lists(reply: str, *, num_bullets: int, relation: str = "exactly") -> str:
    """The number of bullets, at any depth, is `relation` `num_bullets`, such as "exactly" 3."""
    return compared(len(bullets(reply)), relation, num_bullets, "bullets")


@constraint(
    "detectable_format:constrained_response",
    kept=[({}, "My answer is maybe."), ({"options": ["Left", "Right"]}, "Right!")],
    broken=[({}, "My answer is yes. My answer is no."), ({}, "Yes.")],
)
def one_of(
    reply: str, *, options: Sequence[str] = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
) -> str:
    """Exactly one of `options` occurs as a whole word or phrase, in either case."""
    found = [option for option in options if phrase(option).search(reply)]
    return "" if len(found) == 1 else f"{len(found)} of the options occur"


@constraint(
    "detectable_format:number_highlighted_sections",
    kept=[({"num_highlights": 2}, "*This* and **that one**.")],
    broken=[({"num_highlights": 2}, "*This* and 2*3*4 and * a\n* b")],
)
def highlights(reply: str, *, num_highlights: int, relation: str = "at least") -> str:
    """The number of passages between asterisks, like *this*, is `relation` `num_highlights`, such as "at least" 3."""
    return compared(sum(1 for _ in _HIGHLIGHT.finditer(reply)), relation, num_highlights, "highlighted sections")


@constraint(
    "detectable_format:multiple_sections",
    kept=[({"splitter": "SECTION", "num_sections": 2}, "SECTION 1\nOne.\n## SECTION 2: Two.")],
    broken=[({"splitter": "SECTION", "num_sections": 2}, "SECTION 1\nSee SECTION 1, SUBSECTION 2.")],
    renamed={"section_spliter": "splitter"},
)
def sections(reply: str, *, splitter: str, num_sections: int, relation: str = "at least") -> str:
    """The different numbers that follow `splitter` are `relation` `num_sections`, such as "at least" 3."""
    numbers = re.findall(rf"(?<!\w){re.escape(splitter.strip())}\s?(\d+)", reply)
    return compared(len(set(numbers)), relation, num_sections, f"sections marked {splitter.strip()!r:.20}")


@constraint(
    "detectable_format:json_format",
    kept=[
        ({}, '```json\n{"a": 1}\n```'),
        ({"schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}}, '{"a": 1}'),
    ],
    broken=[
        ({}, 'Here: {"a": 1}'),
        ({}, "{'a': 1}"),
        ({}, '{"a": NaN}'),
        ({}, "5"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}, '{"a": "1"}'),
    ],
)
def json_format(reply: str, *, schema: Mapping[str, Any] | None = None) -> str:
    """The whole reply, a code fence aside, is JSON: as `schema` has it or, without one, an object or an array."""
    wrong = schema_fault(schema) if schema is not None else ""
    if wrong:
        raise ValueError(wrong)
    try:
        value = parse_json(reply)
    except NotJson as error:
        return str(error)
    if schema is not None:
        return value_fault(value, schema)
    return "" if isinstance(value, (dict, list)) else "neither an object nor an array"


@constraint(
    "detectable_format:title",
    kept=[({}, "<<The poem>>\nRoses")],
    broken=[({}, "<< >>\nRoses"), ({}, "<The poem>")],
)
def title(reply: str) -> str:
    """A title that is not blank stands in << >>."""
    return "" if any(inner.strip() for inner in _TITLE.findall(reply)) else "no title in << >>"


@constraint(
    "combination:two_responses",
    kept=[({}, "First.\n******\nSecond."), ({"num_responses": 3}, "A ****** B ****** C")],
    broken=[({}, "Same.\n******\nSame."), ({}, "First.\n***\nSecond."), ({}, "First.\n******")],
)
def responses(reply: str, *, num_responses: int = 2, separator: str = "******") -> str:
    """There are `num_responses` responses with `separator` between them, none blank and no two alike."""
    edge = re.escape(separator[0])
    parts = [part.strip() for part in re.split(rf"(?<!{edge}){re.escape(separator)}(?!{edge})", reply)]
    inner = [part for i, part in enumerate(parts) if part or 0 < i < len(parts) - 1]
    if len(set(inner)) < len(inner) or not all(inner):
        return "a response is blank or repeated"
    return compared(len(inner), "exactly", num_responses, "responses")


# Start, end, punctuation


@constraint(
    kept=[({"start_phrase": "Sure thing"}, "\n**Sure thing**: done.")],
    broken=[({"start_phrase": "Sure thing"}, "Well. Sure thing"), ({"start_phrase": "Sure"}, "Surely")],
)
def start_phrase(reply: str, *, start_phrase: str) -> str:
    """The reply begins with `start_phrase`, in either case, after quotation or Markdown marks at most."""
    bare = reply.lstrip(" \n\t\"'“*_#>")
    found = phrase(start_phrase).match(bare) or phrase(start_phrase).match(reply.strip())
    return "" if found else f"does not begin with {start_phrase!r:.60}"


@constraint(
    "startend:end_checker",
    kept=[({"end_phrase": "Any other questions?"}, 'So "any other questions?"\n')],
    broken=[({"end_phrase": "art"}, "So smart"), ({"end_phrase": "The end"}, "The end, my friend")],
)
def end_phrase(reply: str, *, end_phrase: str) -> str:
    """The reply ends with `end_phrase`, in either case, before quotation or Markdown marks at most."""
    closing = r"[\s\"'”»*_`]*\Z"
    if re.search(phrase(end_phrase).pattern + closing, reply, re.IGNORECASE):
        return ""
    return f"does not end with {end_phrase!r:.60}"


@constraint(
    "startend:quotation",
    kept=[({}, '"All of it."'), ({}, " “All of it.” ")],
    broken=[({}, 'He said "hi".'), ({}, '"')],
)
def quotation(reply: str) -> str:
    """The reply is wrapped in double quotation marks and has text between them."""
    text = reply.strip()
    is_wrapped = len(text) > 2 and text[-1] in _QUOTES.get(text[0], ()) and bool(text[1:-1].strip())
    return "" if is_wrapped else "not wrapped in double quotation marks"


@constraint("punctuation:no_comma", kept=[({}, "No; none.")], broken=[({}, "Well, 1"), ({}, "东京，大阪")])
def no_comma(reply: str) -> str:
    """No comma occurs, of whatever script."""
    return "a comma occurs" if _COMMAS.search(reply) else ""
