import time

import pytest

from lydian.verifiers.constraints import constraints  # noqa: F401  enters the kinds
from lydian.verifiers.constraints.prose import plain
from lydian.verifiers.constraints.table import KINDS, Case, Kind, make_constraint

ALL = list({id(kind): kind for kind in KINDS.values()}.values())
CASES = [pytest.param(kind, case, id=f"{kind.name}-{i}") for kind in ALL for i, case in enumerate(kind.cases)]

IFEVAL = [
    "change_case:capital_word_frequency",
    "change_case:english_capital",
    "change_case:english_lowercase",
    "combination:repeat_prompt",
    "combination:two_responses",
    "detectable_content:number_placeholders",
    "detectable_content:postscript",
    "detectable_format:constrained_response",
    "detectable_format:json_format",
    "detectable_format:multiple_sections",
    "detectable_format:number_bullet_lists",
    "detectable_format:number_highlighted_sections",
    "detectable_format:title",
    "keywords:existence",
    "keywords:forbidden_words",
    "keywords:frequency",
    "keywords:letter_frequency",
    "language:response_language",
    "length_constraints:nth_paragraph_first_word",
    "length_constraints:number_paragraphs",
    "length_constraints:number_sentences",
    "length_constraints:number_words",
    "punctuation:no_comma",
    "startend:end_checker",
    "startend:quotation",
]

HOSTILE = [
    "*" * 50_000,
    "[" * 50_000,
    "<" * 50_000,
    "." * 50_000 + "a",
    "P.S. " * 10_000,
    "a " * 50_000,
    "* \n" * 20_000,
    '"' * 50_000,
    "(" * 50_000 + ")" * 50_000,
    "[" * 10_000 + "]" * 10_000,
    '{"a":' * 10_000,
    "9" * 50_000,
    "\ud800\x00\x1b[31m\u202e",
    "```\n\n```",
    "'\" " * 20_000,
    "SECTION 1 " * 5_000,
    " \n" * 30_000 + "x",
    "﷽" * 1000,
]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_each_kind_on_its_own_examples(kind: Kind, case: Case) -> None:
    fault = make_constraint(kind.name, case.parameters).find_fault(plain(case.reply))
    assert (fault == "") is case.is_kept, fault


def test_the_25_kinds_of_ifeval_are_all_there() -> None:
    """The ids of INSTRUCTION_DICT in google-research/instruction_following_eval."""
    assert len(IFEVAL) == 25
    assert set(IFEVAL) <= set(KINDS)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_no_reply_breaks_a_rule_or_takes_more_than_linear_time(kind: Kind) -> None:
    """100,000 characters at most; a quadratic rule would take minutes for them."""
    rule = make_constraint(kind.name, kind.cases[0].parameters)
    for text in HOSTILE:
        start = time.process_time()
        assert isinstance(rule.find_fault(plain(text)), str)
        assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("no_commas", {}, "no constraint is called"),
        ("keywords:letter_frequency", {"letter": "e", "frequncy": 2}, "no parameter 'frequncy'"),
        ("keywords:frequency", {"keyword": "a"}, "no 'frequency' given"),
        ("keywords:existence", {"keywords": []}, "cannot be"),
        ("number_words", {"num_words": "many"}, "cannot be"),
        ("number_words", {"num_words": True}, "cannot be"),
        ("number_words", {"num_words": -1}, "cannot be"),
        ("number_words", {"num_words": 3, "relation": "around"}, "relation"),
        ("language:response_language", {"language": "xx"}, "none of"),
        ("json_format", {"schema": {"oneOf": []}}, "unknown keyword"),
        ("nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}, "between 1 and 2"),
    ],
)
def test_a_constraint_that_is_not_understood_is_refused(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_constraint(name, parameters)


def test_columns_of_tables_hold_floats_and_nulls() -> None:
    rule = make_constraint("length_constraints:number_words", {"num_words": 2.0, "relation": None, "keywords": None})
    assert rule.find_fault("Two words") == ""
    assert rule.find_fault("One") != ""


def kept(name: str, reply: str, **parameters: object) -> bool:
    return make_constraint(name, parameters).find_fault(plain(reply)) == ""


def test_zero_is_a_number_and_not_an_absent_argument() -> None:
    assert kept("keywords:frequency", "none", keyword="apple", frequency=1, relation="less than")
    assert not kept("keywords:frequency", "an apple", keyword="apple", frequency=0, relation="exactly")
    assert not kept("change_case:capital_word_frequency", "A BIG cat", capital_frequency=0, capital_relation="exactly")


def test_typographic_characters_do_not_decide() -> None:
    assert kept("keywords:existence", "We don’t know", keywords=["don't"])
    assert kept("keywords:existence", "cafe\u0301", keywords=["café"])
    assert kept("keywords:existence", "我喜欢北京烤鸭", keywords=["北京"])


def test_separators_inside_longer_runs_of_asterisks_do_not_separate() -> None:
    assert not kept("length_constraints:number_paragraphs", "A ****** B", num_paragraphs=2)
    assert not kept("combination:two_responses", "A ******** B")
    assert kept("combination:two_responses", "A******B")
