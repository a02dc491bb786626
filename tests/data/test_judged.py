"""Judged replies: what labels say together, which replies can be compared, and what is left out and why."""

from __future__ import annotations

import pytest

from lydian.data.judged import JudgedReply, group_replies
from lydian.data.problems import Message
from lydian.errors import DataError

ASK = (Message(role="user", content="Q"),)


def reply(text, score=None, labels=(), **more):
    return JudgedReply(id=more.pop("id", text), messages=more.pop("messages", ASK), reply=text, score=score,
                       labels=labels, **more)  # fmt: skip


@pytest.mark.parametrize("labels, verdict", [((1, 1, 0), True), ((0,), False), ((1, 0), None), ((), None)])
def test_most_labels_decide(labels, verdict):
    assert reply("R", labels=tuple(map(bool, labels))).is_correct is verdict


def test_the_merit_is_the_score_or_the_share_of_labels():
    assert reply("R", 0.25, (True,)).merit == 0.25
    assert reply("R", None, (True, False, True, True)).merit == 0.75
    assert reply("R").merit is None


def test_scores_are_finite_and_prompts_end_before_the_reply():
    for wrong in ({"score": float("nan")}, {"messages": ()}, {"messages": (Message(role="assistant", content="x"),)}):
        with pytest.raises(DataError, match="expected a finite score"):
            reply("R", **wrong)


def test_groups_are_of_one_prompt_and_one_judge():
    other = (Message(role="user", content="P"),)
    replies = [reply("a", 1.0, judge="j"), reply("b", 1.0, messages=other), reply("c", 1.0), reply("d", 0.0, judge="j")]
    groups = group_replies(replies).groups
    assert [[member.reply for member in group.members] for group in groups] == [["a", "d"], ["b"], ["c"]]
    assert [group.judge for group in groups] == ["j", "", ""]


def test_everything_left_out_is_counted_by_reason():
    """One of each reason; the group that keeps nobody still counts as a prompt."""
    other = (Message(role="user", content="P"),)
    replies = [
        reply("right", None, (True,)),
        reply(" right\n", None, (True,), id="again"),
        reply("", None, (False,)),
        reply("cut", None, (True,), is_whole=False),
        reply("failed"),
        reply("tied", None, (True, False)),
        reply("unlabelled", 0.5),
        reply("failed", messages=other),
    ]
    found = group_replies(replies)
    assert found.left_out == {"repeated": 1, "empty": 1, "cut_off": 1, "not_judged": 2, "tied": 1, "no_label": 1}
    assert [member.id for group in found.groups for member in group.members] == ["right"]
    assert found.num_groups == 2
    assert len(replies) == sum(found.left_out.values()) + 1


def test_a_reply_that_occurs_again_is_one_reply():
    """Scores are averaged, labels put together, and the first place is kept; a whole copy makes it whole."""
    copies = [reply("x y", 1.0, (True,), is_whole=False, id="1"), reply("x  y", 0.0, (True,), id="2")]
    (group,) = group_replies(copies).groups
    (member,) = group.members
    assert (member.id, member.score, member.labels, member.is_whole) == ("1", 0.5, (True, True), True)


def test_disagreement_is_the_chance_that_two_labels_differ():
    """(1, 1, 0): 2 of 3 pairs differ. (1, 0): all. (1, 1): none. A single label has no pair. Mean (2/3 + 1 + 0) / 3."""
    labels = [(True, True, False), (True, False), (True, True), (True,)]
    found = group_replies(reply(str(k), None, given) for k, given in enumerate(labels))
    assert found.disagreement == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found.num_several == 3
    assert group_replies([reply("a", 1.0)]).disagreement is None


def test_lengths_are_tokens_only_where_all_are_known():
    known = [reply("a b c", 1.0, num_tokens=5), reply("d", 0.0, num_tokens=2)]
    assert group_replies(known).groups[0].lengths == (5, 2)
    assert group_replies([*known, reply("e f", 0.0)]).groups[0].lengths == (3, 1, 2)
