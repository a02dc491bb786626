"""Steps by rule. Expected steps are written out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydian.data.steps import STEP_RULES, rule_of, split_steps
from lydian.errors import DataError, InputError


@pytest.mark.parametrize(
    ("rule", "reply", "steps"),
    [
        ("line", "a\nb\n\nc", ("a\n", "b\n\n", "c")),
        ("line", "\n \na\n", ("\n \na\n",)),
        ("paragraph", "a\nb\n \nc\n", ("a\nb\n \n", "c\n")),
        ("sentence", "It is 3.5. Half is 1.75! So?", ("It is 3.5. ", "Half is 1.75! ", "So?")),
        ("comma", " 1+1=2, 2*1,000=2,000 #### 2,000", (" 1+1=2, ", "2*1,000=2,000 #### 2,000")),
        ("comma", "", ()),
        ("line", " \n ", ()),
    ],
)
def test_steps_by_hand(rule: str, reply: str, steps: tuple[str, ...]):
    assert split_steps(reply, rule) == steps


@given(reply=st.text(alphabet="a1 ,.\n\t!"), rule=st.sampled_from(sorted(STEP_RULES)))
def test_steps_join_to_the_reply_and_none_is_blank(reply: str, rule: str):
    steps = split_steps(reply, rule)
    assert all(step.strip() for step in steps)
    assert "".join(steps) == (reply if reply.strip() else "")


def test_an_unknown_rule_names_the_known_ones():
    with pytest.raises(InputError, match="paragraph"):
        split_steps("a", "word")


def test_the_rule_is_read_off_the_steps():
    """Two replies of one line each fit every rule but only the first is taken; commas leave one rule."""
    assert rule_of([("a",), ("b",)]) == "line"
    assert rule_of([("1+1=2, ", "2+1=3"), ("a",)]) == "comma"


def test_steps_that_no_rule_makes_are_refused():
    with pytest.raises(DataError, match="no rule makes"):
        rule_of([("1+", "1=2")])
