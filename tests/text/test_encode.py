"""Texts as sequences and pairs: what is trained, which facts they carry, and who answers the same prompt."""

from __future__ import annotations

import pytest

from lydian.data.labelled import Labelled
from lydian.data.problems import Conversation, Feedback, Message, Preference, Problem
from lydian.data.sequence import Pair, Sequence
from lydian.errors import TemplateError
from lydian.text.encode import encode_items, encode_reply, lengths
from lydian.training.step_facts import mismatched
from tests.training.toys import STOP, Letters, ids_of


def ask(letters):
    return (Message(role="user", content=letters),)


def feedback(id, question, reply, is_desirable=True):
    return Feedback(id=id, messages=ask(question), reply=reply, is_desirable=is_desirable)


def test_feedback_is_a_sequence_of_which_the_reply_is_trained():
    (found,) = encode_items([feedback("f", "ab", "cd", is_desirable=False)], Letters())
    assert isinstance(found, Sequence)
    assert found.tokens == (*ids_of("abcd"), STOP)
    assert found.trained == (False, False, True, True, True)
    assert found.facts == {"is_desirable": 0.0}


def test_only_the_last_reply_is_trained():
    """Whatever a template trains of the assistant's earlier turns, feedback speaks of the last."""

    class Talkative(Letters):
        def encode_conversation(self, messages):
            whole = super().encode_conversation(messages)
            return type(whole)(
                tokens=whole.tokens,
                trained=(False, *(True,) * (len(whole.tokens) - 1)),
                roles=whole.roles,
            )

    turns = (*ask("a"), Message(role="assistant", content="b"), *ask("c"))
    assert encode_reply(turns, "d", Talkative()).trained == (False, False, False, True, True)


def test_replies_to_one_prompt_are_never_strangers():
    """KTO's KL takes each prompt with a reply to another one. Two thumbs on "a" and two on "b": every crossed sequence
    begins with the one and ends as a reply to the other, whichever rows they came from."""
    rows = [feedback("1", "a", "k"), feedback("2", "b", "m"), feedback("3", "a", "l"), feedback("4", "b", "n")]
    found = encode_items(rows, Letters())
    assert [sequence.group for sequence in found] == ["1", "2", "1", "2"]
    strangers = {"a": "mn", "b": "kl"}
    for own, crossed in zip(rows, mismatched(found), strict=True):
        question, reply = Letters().decode(crossed.tokens)
        assert question == own.messages[0].content and reply in strangers[question]


def test_pairs_of_one_prompt_share_their_group_and_keep_their_numbers():
    pairs = [Preference(id=k, messages=ask("a"), chosen="b", rejected=r) for k, r in (("p", "c"), ("q", "d"))]
    found = encode_items([*pairs, Conversation(id="c", messages=(*ask("a"), Message(role="assistant", content="b")))],
                         Letters())  # fmt: skip
    first, second, conversation = found
    assert isinstance(first, Pair) and isinstance(second, Pair) and isinstance(conversation, Sequence)
    assert first.chosen.group == second.rejected.group == "p" and conversation.group == "c"
    assert [first.chosen.facts["pair"], second.rejected.facts["pair"]] == [0.0, 1.0]
    assert (first.chosen.facts["is_desirable"], first.rejected.facts["is_chosen"]) == (1.0, 0.0)


def test_what_a_template_cannot_lay_out_is_named():
    class Strict(Letters):
        def encode_conversation(self, messages):
            raise TemplateError(where="strict", given="a", expected="b", fix="c")

    with pytest.raises(TemplateError) as caught:
        encode_items([feedback("row:7", "a", "b")], Strict())
    assert caught.value.where == "'row:7': strict"


def test_lengths_are_those_of_what_is_encoded():
    """Letters and stop tokens by hand: a prompt of two; two and one and a stop; for a preference both replies."""
    assert lengths(Problem(id="p", messages=ask("ab")), Letters()) == [2]
    assert lengths(feedback("f", "ab", "c"), Letters()) == [4]
    assert lengths(Preference(id="p", messages=ask("ab"), chosen="c", rejected="de"), Letters()) == [4, 5]
    assert lengths(Labelled(id="l", messages=ask("ab"), label="x"), Letters()) == [2]
