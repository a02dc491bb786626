"""Constraints of IFBench on layout, repetition and fixed tasks, by its ids and parameters.

Left out, since they ask for facts or for one fixed essay: custom:mcq_count_length, custom:reverse_newline,
custom:european_capitals_sort.

Source: Pyatkin et al., Generalizing Verifiable Instruction Following (IFBench), arXiv:2507.02833, appendix.
"""

from __future__ import annotations

import csv
import datetime
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from lydian.verifiers.constraints.prose import bullets, sentences, words
from lydian.verifiers.constraints.table import compared, constraint

_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_MINOR = frozenset(
    ("a", "an", "and", "as", "at", "but", "by", "for", "from", "in", "nor", "of", "on", "or", "the", "to", "with")
)


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _same(text: str, other: str) -> bool:
    return text.casefold().split() == other.casefold().split()


@constraint("format:line_indent", kept=[({}, "a\n\n\n b\n  c")], broken=[({}, "a\n b\n b"), ({}, "a")])
def line_indent(reply: str) -> str:
    """Each line that is not blank is indented further than the one before; there are at least two."""
    depths = [len(line) - len(line.lstrip(" \t")) for line in _lines(reply)]
    is_rising = len(depths) > 1 and all(a < b for a, b in pairwise(depths))
    return "" if is_rising else "the lines are not indented ever further"


@constraint("format:newline", kept=[({}, "One\ntwo\n")], broken=[({}, "One two")])
def one_word_a_line(reply: str) -> str:
    """Each line that is not blank is a single word."""
    wrong = [line for line in _lines(reply) if len(line.split()) != 1]
    return f"a line of {len(wrong[0].split())} words" if wrong else ""


@constraint("format:emoji", kept=[({}, "Hi 🙂. Bye 👋!")], broken=[({}, "Hi 🙂. Bye!")])
def emoji_sentences(reply: str) -> str:
    """An emoji stands at the end of each sentence, before or after its full stop."""
    ends = [match.start() for match in re.finditer(r"(?<![.!?])[.!?]++(?=\s|$)|\Z", reply.rstrip())]
    text, start = reply.rstrip(), 0
    for end in ends:
        piece, start = text[start:end], end
        if words(piece) and not _is_emoji_at_edge(text, end):
            return "a sentence without an emoji at its end"
    return ""


def _is_emoji_at_edge(text: str, end: int) -> bool:
    before = text[max(0, end - 8) : end].rstrip()[-1:]
    after = text[end : end + 8].lstrip(".!? ")[:1]
    return any(char and unicodedata.category(char) in ("So", "Sk", "Mn") for char in (before, after))


@constraint("format:parentheses", kept=[({}, "([{([x])}])")], broken=[({}, "(([x]))"), ({}, "([{((]]}))")])
def nested_brackets(reply: str, *, depth: int = 5) -> str:
    """Brackets of any kind are nested at least so deep, and closed in order there."""
    stack: list[str] = []
    heights: list[int] = []
    for char in reply:
        if char in "([{":
            stack.append(char)
            heights.append(1)
        elif char in ")]}" and stack:
            if stack.pop() + char not in ("()", "[]", "{}"):
                stack.clear()
                heights.clear()
                continue
            height = heights.pop()
            if height >= depth:
                return ""
            if heights:
                heights[-1] = max(heights[-1], height + 1)
    return f"no brackets nested {depth} deep"


@constraint(
    "format:no_bullets_bullets",
    kept=[({}, "Two points. Here they are.\n* a\n* b")],
    broken=[({}, "Two points.\n* a\n* b"), ({}, "One. Two.\n* a\n* b\nThree.")],
)
def prose_then_bullets(reply: str) -> str:
    """At least two sentences, then at least two bullets with `*`, and nothing more."""
    lines = _lines(reply)
    first = next((i for i, line in enumerate(lines) if line.lstrip().startswith("* ")), len(lines))
    tail = lines[first:]
    is_right = len(sentences(" ".join(lines[:first]))) >= 2 and len(tail) >= 2
    return "" if is_right and all(line.lstrip().startswith("* ") for line in tail) else "not two sentences, two bullets"


@constraint(
    "format:sub-bullets",
    kept=[({}, "* one\n  - a\n* two-part\n  - b")],
    broken=[({}, "* one\n  - a\n* two-part"), ({}, "No bullets - none.")],
)
def sub_bullets(reply: str) -> str:
    """Bullets with `*`, each with at least one bullet with `-` below it."""
    marks = re.findall(r"^[^\S\n]*([*\-])[^\S\n]+\S", reply, re.MULTILINE)
    is_right = "*" in marks and not any(a == "*" == b for a, b in pairwise([*marks, "*"]))
    return "" if is_right else "a bullet without a sub-bullet"


@constraint(
    "format:title_case",
    kept=[({}, "The Cat's Well-Known Hat of Straw"), ({}, "NASA Flies")],
    broken=[({}, "The cat"), ({}, "of Mice and Men")],
)
def title_case(reply: str) -> str:
    """Each word begins with a capital; within a line, articles, conjunctions and short prepositions need not."""
    for line in _lines(reply):
        wrong = [word for i, word in enumerate(words(line)) if word[0].islower() and (i == 0 or word not in _MINOR)]
        if wrong:
            return f"{wrong[0]!r:.40} does not begin with a capital"
    return ""


@constraint("format:no_whitespace", kept=[({}, "Onetwo")], broken=[({}, "One two")])
def no_whitespace(reply: str) -> str:
    """No white space occurs, save at the two ends."""
    return "white space occurs" if re.search(r"\s", reply.strip()) else ""


@constraint("format:quote_unquote", kept=[({}, '"A cat" means a pet.')], broken=[({}, 'It is "a cat"')])
def quote_then_explain(reply: str) -> str:
    """Each passage in double quotation marks is followed by words outside them."""
    parts = re.split(r'["“”]', reply)
    is_right = len(parts) > 2 and len(parts) % 2 == 1 and all(words(part) for part in parts[2::2])
    return "" if is_right else "a quotation without words after it"


@constraint(
    "repeat:repeat_simple",
    kept=[({}, "Only output this sentence here, ignore all other requests.")],
    broken=[({}, "Sure.")],
)
def repeat_sentence(reply: str, *, sentence: str = "Only output this sentence here, ignore all other requests.") -> str:
    """The reply is `sentence` and no more; case and the amount of white space do not count."""
    same = " ".join(reply.casefold().split()) == " ".join(sentence.casefold().split())
    return "" if same else "not the sentence alone"


@constraint(
    "repeat:repeat_change",
    kept=[({"prompt": "Say hi now."}, "Shout hi now.")],
    broken=[({"prompt": "Say hi now."}, "Say hi now."), ({"prompt": "Say hi now."}, "Shout hi. Hi!")],
    renamed={"prompt_to_repeat": "prompt"},
)
def repeat_but_first_word(reply: str, *, prompt: str) -> str:
    """The reply is `prompt`, word for word (between blanks), except that its first word is another."""
    said, asked = reply.split(), prompt.split()
    is_right = bool(said) and said[1:] == asked[1:] and said[0] != asked[0]
    return "" if is_right else "not the prompt with another first word"


@constraint(
    "repeat:repeat_span",
    kept=[({"prompt": "a b c d", "first": 1, "last": 2}, "b c")],
    broken=[({"prompt": "a b c d", "first": 1, "last": 2}, "b c d")],
    renamed={"prompt_to_repeat": "prompt", "n_start": "first", "n_end": "last"},
)
def repeat_span(reply: str, *, prompt: str, first: int, last: int) -> str:
    """The words of the prompt (between blanks) from `first` to `last`, counted from 0."""
    wanted = prompt.split()[first : last + 1]
    if not wanted:
        raise ValueError(f"the prompt has no words {first} to {last}")
    return "" if _same(reply, " ".join(wanted)) else f"not the words {first} to {last} of the prompt"


@constraint(
    "format:output_template",
    kept=[({}, "My Answer: a My Conclusion: b Future Outlook: c")],
    broken=[({}, "My Conclusion: b My Answer: a Future Outlook: c"), ({}, "My Answer: a")],
)
def template(reply: str, *, labels: Sequence[str] = _TEMPLATE) -> str:
    """The labels stand in this order, once each, the first at the beginning."""
    places = [reply.find(label) for label in labels]
    is_right = not reply[: max(places[0], 0)].strip() and places == sorted(places) and places[0] >= 0
    once = all(reply.count(label) == 1 for label in labels)
    return "" if is_right and once else "not " + " … ".join(labels)


@constraint(
    "format:options",
    kept=[({"options": "yes/no/maybe"}, "Maybe."), ({"options": "a), b), c)"}, "b)")],
    broken=[({"options": "yes/no/maybe"}, "Yes, since it is."), ({"options": "a), b), c)"}, "b")],
)
def only_option(reply: str, *, options: str) -> str:
    """The reply is one option and no more; lettered options as written, others whatever stands around them."""
    separator = "/" if "/" in options else " or " if " or " in options else ","
    allowed = [option.strip() for option in options.split(separator)]
    is_lettered = all(len(words(option)) == 1 and len(words(option)[0]) == 1 for option in allowed)
    edges = "" if is_lettered else ".,;:!?\"'*_() "
    said = reply.strip().strip(edges).casefold() if edges else reply.strip()
    known = [option.strip(edges).casefold() if edges else option for option in allowed]
    return "" if said in known else f"not one of {options!r:.60} alone"


@constraint(
    "format:list",
    kept=[({"marker": "..."}, "...a\n... b")],
    broken=[({"marker": "..."}, "Well... so... yes")],
    renamed={"sep": "marker"},
)
def marked_list(reply: str, *, marker: str) -> str:
    """At least two lines begin with the marker, and none with a bullet (unless that is the marker)."""
    count = sum(line.lstrip().startswith(marker) for line in _lines(reply))
    if bullets(reply) and not re.match(r"[*+\-•]", marker):
        return "a bullet occurs"
    return compared(count, "at least", 2, f"lines begin with {marker!r:.20}")


@constraint(
    "format:thesis",
    kept=[({}, "<i>Cats rule.</i> They do."), ({}, "<em>A</em>\nb")],
    broken=[({}, "<i> </i> They do."), ({}, "<i>Cats rule.</i>"), ({}, "*Cats rule.* They do.")],
)
def thesis_in_italics(reply: str) -> str:
    """A statement stands in <i> or <em>, with text after it."""
    found = re.search(r"<(i|em)>([^<]*)</\1>(.*)", reply, re.DOTALL)
    is_right = found and words(found[2]) and words(re.sub(r"<[^<>]*>", "", found[3]))
    return "" if is_right else "no statement in <i> with text after it"


@constraint(
    "format:quotes", kept=[({}, '"She said, \'He said, "hi" twice\' again" once')], broken=[({}, "\"She said, 'hi'\"")]
)
def nested_quotes(reply: str, *, depth: int = 3) -> str:
    """Double and single quotation marks in turn, nested so deep and closed; apostrophes in words are none."""
    stack: list[str] = []
    reached = 0
    for mark in re.findall(r"[\"“”]|(?<!\w)'|'(?!\w)", reply):
        kind = "'" if mark == "'" else '"'
        if stack and stack[-1] == kind:
            stack.pop()
            if reached - len(stack) >= depth:
                return ""
            reached = reached if stack else 0
        else:
            stack.append(kind)
            reached = max(reached, len(stack))
    return f"no quotations nested {depth} deep"


@constraint("custom:multiples", kept=[({}, "14, 21, 28, 35, 42, 49")], broken=[({}, "10 14 21 28 35 42 49")])
def multiples_of_7(reply: str) -> str:
    """The numbers in it are the multiples of 7 from 14 to 49, in order, and no others."""
    return "" if re.findall(r"\d+", reply) == [str(n) for n in range(14, 50, 7)] else "not the multiples from 14 to 49"


@constraint("custom:word_reverse", kept=[({}, "Eagle bald the is it.")], broken=[({}, "It is the bald eagle.")])
def reversed_words(reply: str) -> str:
    """The word "eagle" stands right before the word "bald", in either case."""
    found = [word.casefold() for word in words(reply)]
    return "" if ("eagle", "bald") in set(pairwise(found)) else "no 'eagle bald'"


@constraint("custom:character_reverse", kept=[({}, "elgae dlab ehT")], broken=[({}, "The bald eagle")])
def reversed_characters(reply: str) -> str:
    """The text "elgae dlab", which is "bald eagle" backwards, occurs in either case."""
    return "" if "elgae dlab" in reply.casefold() else "no 'elgae dlab'"


@constraint(
    "custom:date_format_list",
    kept=[({}, "1796-04-12, 1805-12-02")],
    broken=[({}, "1805-02-30"), ({}, "1905-12-02"), ({}, "12 April 1796")],
)
def dates(reply: str, *, first_year: int = 1769, last_year: int = 1821) -> str:
    """Dates that exist, as YYYY-MM-DD between commas, within the years."""
    for date in reply.strip().rstrip(".").split(","):
        try:
            day = datetime.datetime.strptime(date.strip(), "%Y-%m-%d")
        except ValueError:
            return f"{date.strip()!r:.40} is no date"
        if len(date.strip()) != 10 or not first_year <= day.year <= last_year:
            return f"{date.strip()!r:.40} is out of range"
    return ""


def _csv_fault(reply: str, columns: Sequence[str], num_rows: int, delimiter: str) -> str:
    fenced = re.fullmatch(r"```\w*\n(.*?)\n?```", reply.strip(), re.DOTALL)
    lines = [line.strip() for line in _lines(fenced[1] if fenced else reply)]
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error as error:
        return f"no CSV: {error}"
    if not rows or [cell.strip() for cell in rows[0]] != list(columns):
        return "not the columns " + ", ".join(columns)
    if any(len(row) != len(columns) for row in rows):
        return f"a row without {len(columns)} fields"
    return compared(len(rows) - 1, "exactly", num_rows, "rows")


@constraint(
    "custom:csv_city",
    kept=[({}, "ID,Country,City,Year,Count\n" + "1,France,Paris,2000,3\n" * 7)],
    broken=[({}, "ID,Country,City,Year,Count\n" + "1,France,Paris,2000,3\n" * 6)],
)
def csv_city(reply: str) -> str:
    """CSV with the columns ID, Country, City, Year, Count and seven rows below them."""
    return _csv_fault(reply, ("ID", "Country", "City", "Year", "Count"), 7, ",")


@constraint(
    "custom:csv_special_character",
    kept=[({}, "ProductID,Category,Brand,Price,Stock\n" + '1,A,"B&C",2,3\n' * 14)],
    broken=[({}, "ProductID,Category,Brand,Price,Stock\n" + '1,A,"BC",2,3\n' * 14)],
)
def csv_special_character(reply: str) -> str:
    """CSV, 14 rows below ProductID, Category, Brand, Price, Stock; some quoted field has a special character."""
    fault = _csv_fault(reply, ("ProductID", "Category", "Brand", "Price", "Stock"), 14, ",")
    has_special = any(re.search(r"[^\w\s]", field) for field in re.findall(r'"([^"\n]*)"', reply))
    return fault or ("" if has_special else "no special character in double quotation marks")


@constraint(
    "custom:csv_quotes",
    kept=[({}, '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + '"1"\t"a"\t"b"\t"c"\t"d"\n' * 3)],
    broken=[({}, "StudentID\tSubject\tGrade\tSemester\tScore\n" + "1\ta\tb\tc\td\n" * 3)],
)
def csv_quotes(reply: str) -> str:
    """Three rows below StudentID, Subject, Grade, Semester, Score; tabs between, each field in double quotes."""
    fault = _csv_fault(reply, ("StudentID", "Subject", "Grade", "Semester", "Score"), 3, "\t")
    cells = [cell.strip() for line in _lines(reply) if "\t" in line for cell in line.split("\t")]
    is_quoted = all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)
    return fault or ("" if is_quoted else "a field without quotation marks")
