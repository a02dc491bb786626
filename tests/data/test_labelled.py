"""Labels of steps and of texts, from code and from rows."""

import pytest

from lydian.data.arithmetic import arithmetic_labelled, arithmetic_stepwise
from lydian.data.labelled import Labelled, Stepwise, classes_of
from lydian.data.problems import Message
from lydian.data.rows import load_labelled, load_stepwise
from lydian.data.steps import rule_of
from lydian.errors import DataError

ASK = (Message(role="user", content="q"),)


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": (1.0,)},
        {"labels": (1.0, 2.0)},
        {"labels": (None, None)},
        {"steps": ("a", " "), "labels": (1.0, 1.0)},
        {"messages": (Message(role="assistant", content="q"),)},
        {"messages": ()},
    ],
)
def test_malformed_steps_are_refused(fields: dict):
    with pytest.raises(DataError):
        Stepwise(**{"id": "s", "messages": ASK, "steps": ("a, ", "b"), "labels": (1.0, 0.0), **fields})


@pytest.mark.parametrize(
    ("label", "read"), [(True, 1.0), (False, 0.0), ("+", 1.0), ("-", 0.0), (0.25, 0.25), (1, 1.0), (None, None)]
)
def test_labels_of_steps_as_files_write_them(label: object, read: float | None):
    row = {"prompt": "q", "steps": ["a", "b"], "labels": [label, True]}
    assert load_stepwise([row]).items[0].labels == (read, 1.0)


@pytest.mark.parametrize("label", ["maybe", -100, 2, [1]])
def test_other_labels_of_steps_are_refused(label: object):
    with pytest.raises(DataError, match="labels"):
        load_stepwise([{"prompt": "q", "steps": ["a", "b"], "labels": [label, True]}])


def test_steps_without_a_blank_at_their_end_get_a_line_break():
    items = load_stepwise([{"prompt": "q", "completions": ["a", "b, ", "c"], "labels": [1, 1, 0]}]).items
    assert items[0].steps == ("a\n", "b, ", "c")
    assert items[0].reply == "a\nb, c"


def test_fewer_labels_than_steps_are_skipped_and_listed():
    rows = [{"prompt": "q", "steps": ["a"], "labels": [1]}, {"prompt": "q", "steps": ["a", "b"], "labels": [1]}]
    loaded = load_stepwise(rows, on_bad_row="skip")
    assert (len(loaded.items), len(loaded.skipped)) == (1, 1)
    assert "2 labels" in loaded.skipped[0][1]


def test_classes_are_the_sorted_names():
    rows = [{"text": "x", "label": label} for label in ("b", 3, True, "b")]
    items = load_labelled(rows).items
    assert classes_of(items) == ("3", "b", "true")
    with pytest.raises(DataError, match="two"):
        classes_of(items[:1])


def test_a_text_may_be_a_whole_conversation():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    item = load_labelled([{"messages": messages, "label": "kind"}]).items[0]
    assert item == Labelled(
        id="rows:1", messages=(*ASK, Message(role="assistant", content="a")), label="kind", source="rows"
    )


def test_generated_steps_are_right_where_their_equation_and_all_before_it_hold():
    """Checked with Python's own arithmetic; a wrong intermediate result makes what builds on it wrong unless a second
    error mends it, so the label says that the written result equals the true one."""
    items = arithmetic_stepwise(num=40, error_rate=0.3, seed=3)
    assert rule_of(item.steps for item in items) == "comma"
    labels = [label for item in items for label in item.labels]
    assert 0.2 < sum(labels) / len(labels) < 0.9
    for item in items:
        true = float(item.messages[0].content.split("Start with ")[1].split(".")[0])
        for step, label in zip(item.steps, item.labels, strict=True):
            left, right = step.split("####")[0].strip(" ,").split("=")
            symbol = next(s for s in "+-*/" if s in left)
            operand = float(left.split(symbol)[1])
            true = {"+": true + operand, "-": true - operand, "*": true * operand, "/": true / operand}[symbol]
            assert label == float(float(right) == true)


def test_generated_classes_are_those_of_the_last_operation():
    for item in arithmetic_labelled(num=30):
        last = item.messages[0].content.split(". ")[-1].split()[0]
        words = {"Add": "sum", "Gain": "sum", "Put": "sum", "Subtract": "difference", "Lose": "difference"}
        words |= {
            "Take": "difference",
            "Times": "product",
            "Multiply": "product",
            "Divide": "quotient",
            "Share": "quotient",
        }
        assert words[last] == item.label
