"""What problems, conversations, preferences and feedback refuse at construction; when sets of problems are equal."""

from __future__ import annotations

import dataclasses

import pytest

from lydian.data.problems import (
    Conversation,
    Feedback,
    Message,
    Preference,
    Problem,
    check_unique_ids,
    problems_digest,
)
from lydian.errors import DataError

ASK = Message(role="user", content="2 + 3 = ?")
REPLY = Message(role="assistant", content="5")


def said(role, content="words"):
    return Message(role=role, content=content)


def test_a_problem_is_frozen_and_knows_its_question():
    problem = Problem(id="a", messages=(Message(role="system", content="S"), ASK), answer="5")
    assert problem.question == "2 + 3 = ?"
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.answer = "6"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Message(role="bot", content="x"), "got 'bot'; expected one of system, user, assistant, tool"),
        (lambda: Message(role="user", content=None), "got NoneType; expected a string"),
        (lambda: Problem(id="a", messages=()), "no messages"),
        (lambda: Problem(id="a", messages=(ASK, REPLY)), "expected a last message not from the assistant"),
        (lambda: Conversation(id="a", messages=()), "no messages"),
        (lambda: Conversation(id="a", messages=(REPLY, ASK)), "expected the last message from the assistant"),
        (lambda: Preference(id="a", messages=(REPLY,), chosen="x", rejected="y"), "a last message not from"),
        (lambda: Preference(id="a", messages=(ASK,), chosen="x", rejected="x"), "chosen equal to rejected"),
        (lambda: Preference(id="a", messages=(ASK,), chosen=" ", rejected="x"), "'a', chosen: got an empty reply"),
        (lambda: Preference(id="a", messages=(ASK,), chosen="x", rejected="\n"), "'a', rejected: got an empty reply"),
        (
            lambda: Preference(id="a", messages=(ASK,), chosen="x y", rejected=" x\ny"),
            "chosen equal to rejected but for",
        ),
        (
            lambda: Conversation(id="a", messages=(ASK, said("assistant", " "))),
            r"'a'.messages\[1\]: got an empty reply",
        ),
        (lambda: Feedback(id="a", messages=(REPLY,), reply="x", is_desirable=True), "a last message not from"),
        (lambda: Feedback(id="a", messages=(ASK,), reply=" ", is_desirable=True), "'a', reply: got an empty reply"),
        (lambda: Feedback(id="a", messages=(ASK,), reply="x", is_desirable=1), "is_desirable: got 1; expected True or"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    "roles",
    [
        "system user assistant",
        "user assistant user assistant",
        "assistant user assistant",  # a greeting
        "user assistant tool tool assistant",
        "user assistant tool user assistant",
        "system assistant",
    ],
)
def test_orders_that_chat_templates_take(roles):
    messages = tuple(said(role) for role in roles.split())
    assert Conversation(id="a", messages=messages).messages == messages


@pytest.mark.parametrize(
    ("roles", "place", "expected"),
    [
        ("user system assistant", 1, "a system message in the first place only"),
        ("system system user assistant", 1, "a system message in the first place only"),
        ("user user assistant", 1, "somebody else between two messages from user"),
        ("user assistant assistant", 2, "somebody else between two messages from assistant"),
        ("user tool assistant", 1, "a tool's message after the assistant's"),
        ("tool assistant", 0, "a tool's message after the assistant's"),
    ],
)
def test_orders_that_chat_templates_refuse_name_the_message(roles, place, expected):
    with pytest.raises(DataError) as caught:
        Conversation(id="a", messages=tuple(said(role) for role in roles.split()))
    assert caught.value.where == f"'a'.messages[{place}]"
    assert caught.value.expected.startswith(expected)


def test_plain_text_is_a_conversation_of_one_message():
    assert Conversation(id="a", messages=(REPLY,)).messages == (REPLY,)


def test_ids_are_unique():
    one, other = (Problem(id=name, messages=(ASK,)) for name in "ab")
    check_unique_ids([one, other], where="here")
    with pytest.raises(DataError, match="here: got the id 'a' twice"):
        check_unique_ids([one, other, one], where="here")


def test_the_digest_tells_problems_apart_by_id_messages_answer_and_order():
    problem = Problem(id="a", messages=(ASK,), answer="5", source="x")
    other = dataclasses.replace(problem, id="b")
    digest = problems_digest([problem, other])
    assert problems_digest([dataclasses.replace(problem, source="y"), other]) == digest
    changed = [
        [other, problem],
        [problem],
        [problem, dataclasses.replace(other, answer=None)],
        [problem, dataclasses.replace(other, messages=(dataclasses.replace(ASK, role="system"),))],
    ]
    assert len({digest, *map(problems_digest, changed)}) == 5
