"""What each set of columns becomes; the expected texts are written out by hand."""

from __future__ import annotations

import pytest

from lydian.data.rows import load_conversations, load_preferences, load_problems
from lydian.errors import DataError

USER = {"role": "user", "content": "Q"}
ASSISTANT = {"role": "assistant", "content": "R"}
NO = {"role": "assistant", "content": "No"}
SYSTEM = {"role": "system", "content": "S"}
GSM8K = {"question": " Clips? ", "answer": "48/2 = <<48/2=24>>24\n48+24 = $<<48+24=72>>72\n#### 72"}
MMLU = {"question": " Which?", "A": "x", "B": "y", "C": "z", "answer": "c"}
SVAMP = {"Body": "Ann has 2 pens ", "Question": "How many?", "Answer": 145.0, "ID": "chal-7", "Type": "Sum"}


def problem(row, **settings):
    return load_problems([row], **settings).items[0]


def said(item):
    return [(message.role, message.content) for message in item.messages]


@pytest.mark.parametrize(
    ("row", "messages", "answer"),
    [
        ({"messages": [SYSTEM, USER], "answer": 5}, [("system", "S"), ("user", "Q")], "5"),
        ({"conversations": [{"from": "human", "value": "Q"}]}, [("user", "Q")], None),
        ({"prompt": " Q\n", "answer": "a\n#### 7"}, [("user", " Q\n")], "7"),
        ({"prompt": "Q", "completion": "R"}, [("user", "Q")], "R"),
        ({"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}, [("system", "S"), ("user", "Q")], "R"),
        ({"prompt": "Q"}, [("user", "Q")], None),
        ({"question": "Q", "choices": ["x", "y"], "answer": 1}, [("user", "Q\nA. x\nB. y")], "B"),
        ({"question": "Q", "choices": ["x", "y"], "answer": "a"}, [("user", "Q\nA. x\nB. y")], "A"),
        (MMLU, [("user", "Which?\nA. x\nB. y\nC. z")], "C"),
        (GSM8K, [("user", "Clips?")], "72"),
        ({"question": "Q", "answer": "so\n#### 1,450,000"}, [("user", "Q")], "1450000"),
        ({"question": "Q", "answer": "x\n#### 1,2"}, [("user", "Q")], "1,2"),
        ({"question": "Q", "answer": " Paris "}, [("user", "Q")], "Paris"),
        ({"problem": "P", "solution": "so", "answer": r"\frac{1}{2}"}, [("user", "P")], r"\frac{1}{2}"),
        ({"input": "I", "target": 43.0}, [("user", "I")], "43"),
        ({"input": "I", "target": "43.0"}, [("user", "I")], "43"),
        ({"input": "I", "target": 39}, [("user", "I")], "39"),
        ({"input": "I", "target": 3.33333}, [("user", "I")], "3.33333"),
        ({"input": "I", "target": 1e-7}, [("user", "I")], "0.0000001"),
        (SVAMP, [("user", "Ann has 2 pens. How many?")], "145"),
    ],
)
def test_problems(row, messages, answer):
    found = problem(row)
    assert (said(found), found.answer) == (messages, answer)


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [SYSTEM, USER, ASSISTANT]}, [("system", "S"), ("user", "Q"), ("assistant", "R")]),
        (
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "R"}]},
            [("user", "Q"), ("assistant", "R")],
        ),
        ({"prompt": "Q ", "completion": " R"}, [("user", "Q "), ("assistant", " R")]),
        ({"prompt": [USER], "completion": [ASSISTANT]}, [("user", "Q"), ("assistant", "R")]),
        (MMLU, [("user", "Which?\nA. x\nB. y\nC. z"), ("assistant", "C")]),
        (GSM8K, [("user", "Clips?"), ("assistant", "48/2 = 24\n48+24 = $72\n#### 72")]),
        ({"question": "Q", "answer": "a << b = c >> d"}, [("user", "Q"), ("assistant", "a << b = c >> d")]),
        ({"problem": "P", "solution": "so", "answer": "1"}, [("user", "P"), ("assistant", "so")]),
        ({"input": "I", "target": 2.0}, [("user", "I"), ("assistant", "2")]),
        (SVAMP, [("user", "Ann has 2 pens. How many?"), ("assistant", "145")]),
        ({"text": "Once upon "}, [("assistant", "Once upon ")]),
    ],
)
def test_conversations(row, messages):
    assert said(load_conversations([row]).items[0]) == messages


@pytest.mark.parametrize(
    ("row", "messages", "chosen", "rejected"),
    [
        ({"prompt": "Q", "chosen": "aa", "rejected": "ab"}, [("user", "Q")], "aa", "ab"),
        ({"prompt": [USER], "chosen": "a", "rejected": "b"}, [("user", "Q")], "a", "b"),
        ({"prompt": [USER], "chosen": [ASSISTANT], "rejected": [NO]}, [("user", "Q")], "R", "No"),
        ({"chosen": [USER, ASSISTANT], "rejected": [USER, NO]}, [("user", "Q")], "R", "No"),
        ({"prompt": "Q", "chosen": [USER, ASSISTANT], "rejected": [USER, NO]}, [("user", "Q")], "R", "No"),
        (
            {"prompt": "Q", "chosen": [SYSTEM, USER, ASSISTANT], "rejected": [SYSTEM, USER, NO]},
            [("system", "S"), ("user", "Q")],
            "R",
            "No",
        ),
        (
            {"prompt": [SYSTEM], "chosen": [USER, ASSISTANT], "rejected": [USER, NO]},
            [("system", "S"), ("user", "Q")],
            "R",
            "No",
        ),
    ],
)
def test_preferences(row, messages, chosen, rejected):
    found = load_preferences([row]).items[0]
    assert (said(found), found.chosen, found.rejected) == (messages, chosen, rejected)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "Human: hi A: x", "rejected": "Human: hi A: y"}, "column 'prompt': got no value"),
        ({"chosen": [ASSISTANT], "rejected": [NO]}, "expected a last message not from the assistant|no messages"),
        ({"chosen": [USER, ASSISTANT], "rejected": [SYSTEM, NO]}, "column 'chosen'.*the shared messages, then one"),
        ({"prompt": "Other", "chosen": [USER, ASSISTANT], "rejected": [USER, NO]}, "column 'prompt': got str 'Other'"),
        ({"prompt": "Q", "chosen": "a", "rejected": "a"}, "chosen equal to rejected"),
        ({"prompt": "Q", "chosen": "a", "rejected": " "}, "column 'rejected': got str ' '; expected text"),
    ],
)
def test_preferences_that_are_none(row, message):
    with pytest.raises(DataError, match=message):
        load_preferences([row])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Q", "answer": "a\nb"}, "expected one line, or a worked solution that ends with the answer"),
        ({"question": "Q", "answer": "a\n#### "}, "expected a final answer after ####"),
        ({"question": 7, "answer": "a"}, "column 'question': got int 7; expected text"),
        ({"question": "\ud800", "answer": "a"}, "column 'question'"),
        ({"question": "Q", "answer": True}, "column 'answer': got bool True; expected text or a finite number"),
        ({"input": "I", "target": float("nan")}, "column 'target': got float nan"),
        ({"question": "Q", "choices": ["x", "y"], "answer": 2}, "expected a letter from A to B, or an index"),
        ({"question": "Q", "choices": ["x"], "answer": 0}, "expected a list of 2 to 26 texts"),
        (MMLU | {"answer": "D"}, "column 'answer': got str 'D'; expected a letter from A to C"),
        (MMLU | {"E": "w"}, "column 'D': got no value"),
        ({"messages": "Q"}, "column 'messages': got str 'Q'; expected a list of"),
        ({"messages": [{"role": "user"}]}, "column 'messages', message 0: got {'role': 'user'}"),
        ({"messages": [{"role": "bot", "content": "Q"}]}, "message 0: got 'bot'; expected one of system, user"),
        ({"messages": [USER | {"tool_calls": [1]}]}, "without tool calls"),
        ({"messages": [USER, ASSISTANT]}, "Load answers to imitate as conversations"),
        ({"prompt": "Q", "completion": [USER]}, "column 'completion'.*expected one message from the assistant"),
        ({"title": "Q", "body": None}, "the columns: got title; expected one of messages, conversations, prompt"),
    ],
)
def test_problems_that_are_none(row, message):
    with pytest.raises(DataError, match=message):
        load_problems([row])


def test_columns_without_values_do_not_count():
    """Tables fill absent columns with None: the layout is that of the columns that hold something."""
    assert problem({"messages": None, "prompt": None, "question": "Q", "answer": "1"}).question == "Q"


def test_an_earlier_layout_wins_and_a_mapping_overrides_the_order():
    row = {"prompt": "P", "question": "Q", "answer": "1"}
    assert problem(row).question == "P"
    assert problem(row, columns={"question": "question"}).question == "Q"
