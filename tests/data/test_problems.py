"""What a problem, a conversation and a preference refuse at construction, and when two sets of problems are equal."""

from __future__ import annotations

import dataclasses

import pytest

from lydian.data.problems import Conversation, Message, Preference, Problem, check_unique_ids, problems_digest
from lydian.errors import DataError

ASK = Message(role="user", content="2 + 3 = ?")
REPLY = Message(role="assistant", content="5")


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
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


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
        [problem, dataclasses.replace(other, messages=(dataclasses.replace(ASK, role="tool"),))],
    ]
    assert len({digest, *map(problems_digest, changed)}) == 5
