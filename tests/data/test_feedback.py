"""Columns that judge a reply: labels, replies side by side, and the layouts of feedback and of judged replies."""

from __future__ import annotations

import pytest

from lydian.data.rows import load_feedback, load_judged
from lydian.errors import DataError

USER = {"role": "user", "content": "Q"}
ASSISTANT = {"role": "assistant", "content": "R"}
ROLLOUT = {"problem_id": "p", "prompt": "Q", "text": "R", "ids": [5, 6, 2], "outcome": "wrong", "score": 0.1}
ROLLOUT |= {"verifier": "numeric:1", "finish": "stop", "logprobs": [-1.0, -1.0, -1.0], "pieces": ["R", "", ""]}


def judged(*rows, **settings):
    return load_judged(list(rows), **settings).items


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Q", "completion": "R", "label": False},
        {"prompt": [USER], "completion": [ASSISTANT], "label": 0},
        {"messages": [USER, ASSISTANT], "label": "0"},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "R"}], "label": "FALSE"},
    ],
)
def test_feedback_as_people_write_it(row):
    found = load_feedback([row]).items[0]
    assert ([(m.role, m.content) for m in found.messages], found.reply) == ([("user", "Q")], "R")
    assert found.is_desirable is False


def test_a_reply_to_nothing_is_no_feedback():
    with pytest.raises(DataError, match=r"column 'messages'.*expected a message to answer"):
        load_feedback([{"messages": [ASSISTANT], "label": 1}])


def test_a_column_of_labels_may_have_another_name():
    row = {"messages": [USER, ASSISTANT], "kto_tag": True}
    assert load_feedback([row], columns={"label": "kto_tag"}).items[0].is_desirable


def test_a_line_of_rollouts():
    """Length from the ids; the verdict is a label; lists of single tokens are no metadata."""
    (found,) = judged(ROLLOUT)
    assert (found.reply, found.score, found.labels, found.judge) == ("R", 0.1, (False,), "numeric:1")
    assert (found.num_tokens, found.is_whole, found.metadata) == (3, True, {"problem_id": "p"})
    rows = [ROLLOUT | change for change in ({"finish": "length"}, {"outcome": "failed", "score": None}, {"text": ""})]
    cut, failed, empty = judged(*rows)
    assert not cut.is_whole
    assert (failed.score, failed.labels, failed.is_correct) == (None, (), None)
    assert empty.reply == ""
    system = {"role": "system", "content": "S"}
    assert [m.role for m in judged(ROLLOUT | {"messages": [system, USER]})[0].messages] == ["system", "user"]
    with pytest.raises(DataError, match=r"column 'outcome'.*expected one of correct, wrong"):
        judged(ROLLOUT | {"outcome": "right"})


def test_rows_of_scores_and_labels():
    row = {"prompt": "Q", "completion": "R"}
    scored, labelled, voted = judged(row | {"score": "0.5"}, row | {"label": 1}, row | {"labels": [1, 0, "true"]})
    assert (scored.score, scored.labels) == (0.5, ())
    assert (labelled.score, labelled.labels, labelled.is_correct) == (None, (True,), True)
    assert voted.labels == (True, False, True)
    facts = {"score": 1, "finish": "abort", "num_tokens": 7, "judge": "rm:2"}
    (cut,) = judged(row | facts)
    assert (cut.is_whole, cut.num_tokens, cut.judge) == (False, 7, "rm:2")
    with pytest.raises(DataError, match=r"column 'score'.*expected a score, a label, or a list of labels"):
        judged(row)


def test_replies_to_one_prompt_share_its_id():
    """A column `id` names the prompt; every reply gets an id of its own, unless a column is named for it."""
    rows = [{"id": "p", "nr": k, "prompt": "Q", "completion": "R", "score": k} for k in range(2)]
    assert [(item.id, item.metadata["id"]) for item in judged(*rows)] == [("rows:1", "p"), ("rows:2", "p")]
    assert [item.id for item in judged(*rows, columns={"id": "nr"})] == ["0", "1"]


def test_replies_side_by_side():
    """Columns of objects and a column of a list become rows of their own; what stands beside them is common to all."""
    row = {"prompt": "Q", "level": 3, "a": {"completion": "R", "score": 1}, "n": [{"completion": "S", "score": 0}] * 2}
    found = judged(row, spread=("a", "n"))
    assert [(item.id, item.reply, item.source) for item in found] == [
        ("rows/a:1", "R", "rows/a"),
        ("rows/n/0:1", "S", "rows/n/0"),
        ("rows/n/1:1", "S", "rows/n/1"),
    ]
    assert all(item.metadata == {"level": 3} for item in found)
    with pytest.raises(DataError, match="row 1: column 'a': got 'R'; expected an object, or a list of objects"):
        judged(row | {"a": "R"}, spread=("a", "n"))
    skipped = load_judged([row, row | {"a": None}], spread=("a", "n"), on_bad_row="skip").skipped
    assert [place for place, _ in skipped] == ["rows, row 2"]
    with pytest.raises(DataError, match=r"row 1, n/1: column 'score'"):
        judged(row | {"n": [{"completion": "S", "score": 0}, {"completion": "S", "score": "?"}]}, spread=("n",))
