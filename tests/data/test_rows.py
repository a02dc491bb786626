"""Loading as a whole: ids, metadata, renamed columns, errors with their place; and every file of the shared data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lydian.data.pairs import build_pairs
from lydian.data.problems import Conversation, Feedback, Message, Preference
from lydian.data.rows import (
    load_conversations,
    load_feedback,
    load_judged,
    load_preferences,
    load_problems,
    to_row,
)
from lydian.errors import DataError, InputError

DATA = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[2] / "../shared/data"))
ROW = {"question": "2 + 3 = ?", "answer": "5"}
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no data at {DATA}; set LYDIAN_DATA")


def test_a_bad_row_says_file_line_column_and_shows_a_right_one(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps({"question": "4 + 4 = ?"}) + "\n")
    with pytest.raises(DataError) as caught:
        load_problems(path)
    assert caught.value.where == f"{path}:3: column 'answer'"
    assert caught.value.given == "no value (columns: question)"
    assert caught.value.expected == "text or a finite number"
    example = caught.value.fix.partition("A right row: ")[2]
    assert set(json.loads(example)) == {"question", "answer"}


@pytest.mark.parametrize("load", [load_problems, load_conversations, load_preferences, load_feedback, load_judged])
def test_every_example_row_is_a_right_row(load):
    from lydian.data import feedback, layouts

    table = {
        load_problems: layouts.PROBLEM_LAYOUTS,
        load_conversations: layouts.CONVERSATION_LAYOUTS,
        load_preferences: layouts.PREFERENCE_LAYOUTS,
        load_feedback: feedback.FEEDBACK_LAYOUTS,
        load_judged: feedback.JUDGED_LAYOUTS,
    }[load]
    for layout in table:
        assert layouts.recognise(table, layouts.Row(values=layout.example, columns={})) is layout
        assert len(load([layout.example]).items) == 1


def test_the_layout_is_that_of_the_first_row_that_has_one():
    rows = [{"junk": 1}, ROW, {"prompt": "P", "answer": "1"}]
    loaded = load_problems(rows, on_bad_row="skip")
    assert [p.id for p in loaded.items] == ["rows:2"]
    assert [reason.partition(":")[0] for _, reason in loaded.skipped] == ["the columns", "column 'question'"]


def test_ids_are_taken_or_made():
    rows = [ROW | {"id": 7}, ROW | {"id": ""}, ROW | {"id": None}, ROW | {"id": "x"}]
    assert [p.id for p in load_problems(rows, name="set").items] == ["7", "set:2", "set:3", "x"]


def test_an_id_that_occurs_twice_names_both_places():
    rows = [ROW | {"id": "x"}, ROW, ROW | {"id": "x"}]
    with pytest.raises(DataError, match="rows, row 3: the id: got 'x', which rows, row 1 has too"):
        load_problems(rows)
    assert [place for place, _ in load_problems(rows, on_bad_row="skip").skipped] == ["rows, row 3"]


def test_other_columns_become_metadata():
    row = ROW | {"id": "x", "level": 3, "easy": True, "tags": ["a"], "note": None, "weight": 0.5, "by": "Ann"}
    assert load_problems([row]).items[0].metadata == {
        "level": 3,
        "easy": True,
        "tags": ["a"],
        "weight": 0.5,
        "by": "Ann",
    }


def test_columns_may_have_other_names():
    row = {"frage": "2 + 3 = ?", "gold": 5, "nr": 9, "question": "kept"}
    found = load_problems([row], columns={"question": "frage", "answer": "gold", "id": "nr"}).items[0]
    assert (found.id, found.question, found.answer, found.metadata) == ("9", "2 + 3 = ?", "5", {"question": "kept"})


def test_a_mapping_is_never_ignored():
    """The gold answers sit in a column that is absent, or lacks a value: no problem without an answer slips through."""
    with pytest.raises(DataError, match="the columns: got prompt"):
        load_problems([{"prompt": "P"}], columns={"answer": "gold"})
    rows = [{"prompt": "P", "gold": "1"}, {"prompt": "P", "gold": None}]
    with pytest.raises(DataError, match="row 2: column 'gold': got no value"):
        load_problems(rows, columns={"answer": "gold"})
    with pytest.raises(DataError, match="column 'nr': got no value"):
        load_problems([ROW], columns={"id": "nr"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": {"qestion": "q"}}, "Did you mean 'question'?"),
        ({"columns": {"my_column": "question"}}, "not the other way round"),
        ({"on_bad_row": "ignore"}, "expected 'stop' or 'skip'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError) as caught:
        load_problems([ROW], **settings)
    assert message in str(caught.value)


def test_a_csv_file_without_header_is_read_as_multiple_choice(tmp_path):
    path = tmp_path / "algebra.csv"
    path.write_text('"Find c, if any",0,1,2,3,B\nWhich?,w,x,y,z,D\n')
    items = load_problems(path).items
    assert [(p.id, p.answer) for p in items] == [("algebra:1", "B"), ("algebra:2", "D")]
    assert items[0].question == "Find c, if any\nA. 0\nB. 1\nC. 2\nD. 3"


ASKED = {"role": "user", "content": "Q"}
TWICE = [ASKED, ASKED, {"role": "assistant", "content": "R"}]
PAIR = {"prompt": "Q", "chosen": "R", "rejected": "S"}
THUMB = {"prompt": "Q", "completion": "R", "label": 1}
BAD = [
    (load_preferences, PAIR, {"chosen": "S"}, "chosen and rejected", "two different replies"),
    (load_preferences, PAIR, {"chosen": " S\n"}, "chosen and rejected", "two different replies"),
    (load_preferences, PAIR, {"rejected": " "}, "column 'rejected'", "text"),
    (load_preferences, PAIR, {"prompt": [ASKED, ASKED]}, "messages[1]", "somebody else between two messages"),
    (load_conversations, {"messages": TWICE[1:]}, {"messages": TWICE}, "messages[1]", "somebody else between"),
    (load_conversations, {"prompt": "Q", "completion": "R"}, {"completion": ""}, "column 'completion'", "text"),
    (load_problems, {"messages": [ASKED]}, {"messages": [*TWICE[1:]]}, "messages", "not from the assistant"),
    (load_feedback, THUMB, {"label": 2}, "column 'label'", "true or false, 1 or 0"),
    (load_feedback, THUMB, {"label": "up"}, "column 'label'", "true or false, 1 or 0"),
    (load_feedback, THUMB, {"label": 0.5}, "column 'label'", "true or false, 1 or 0"),
    (load_feedback, THUMB, {"label": None}, "column 'label'", "true or false, 1 or 0"),
    (load_feedback, THUMB, {"completion": ""}, "column 'completion'", "text"),
    (load_judged, THUMB | {"score": 1}, {"label": "good"}, "column 'label'", "true or false, 1 or 0"),
    (load_judged, THUMB | {"score": 1}, {"score": "high"}, "column 'score'", "a finite number"),
    (load_judged, THUMB | {"labels": [1]}, {"labels": [1, 3]}, "column 'labels'", "true or false, 1 or 0"),
]


@pytest.mark.parametrize(("load", "good", "change", "field", "expected"), BAD)
def test_a_bad_row_is_refused_or_skipped_and_always_named(tmp_path, load, good, change, field, expected):
    """Line 2 of three is bad: "stop" raises, "skip" keeps the others; both name file, line, field and expectation."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, good | change, good)))
    with pytest.raises(DataError) as caught:
        load(path)
    assert caught.value.where.startswith(f"{path}:2: ") and field in caught.value.where
    assert expected in caught.value.expected
    loaded = load(path, on_bad_row="skip")
    assert [item.id for item in loaded.items] == ["data:1", "data:3"]
    ((place, reason),) = loaded.skipped
    assert place == f"{path}:2" and field in reason and expected in reason


def test_words_mean_what_is_stated():
    """Without a rule "up" is refused (above); with one, what it does not name is read as before or refused."""
    rows = [THUMB | {"label": label} for label in ("up", " down", 1, "False", -1)]
    rule = {"up": True, "down": False, "-1": False}
    assert [item.is_desirable for item in load_feedback(rows, labels=rule).items] == [True, False, True, False, False]
    with pytest.raises(DataError, match="rows, row 2: column 'label': got str 'sideways'"):
        load_feedback([rows[0], THUMB | {"label": "sideways"}], labels=rule)


def test_a_csv_file_has_labels_as_text(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("prompt,completion,label\nQ,R,true\nQ,S,0\n")
    assert [item.is_desirable for item in load_feedback(path).items] == [True, False]


def test_what_is_written_is_read_back_equal(tmp_path):
    """A question alone is written as text, a longer prompt as messages; metadata stay, also those named `id`."""
    ask, system = Message(role="user", content="Q"), Message(role="system", content="S")
    reply = Message(role="assistant", content="R")
    facts = {"source": "f", "metadata": {"level": 2, "scores": [1.0, 0.0]}}
    for load, kind, own in (
        (load_preferences, Preference, {"chosen": "R", "rejected": "N"}),
        (load_feedback, Feedback, {"reply": "R", "is_desirable": False}),
        (load_conversations, Conversation, {}),
    ):
        last = (reply,) if kind is Conversation else ()
        items = [kind(id=k, messages=(*m, *last), **own, **facts) for k, m in (("a", (ask,)), ("b", (system, ask)))]
        path = tmp_path / "f.jsonl"
        path.write_text("".join(json.dumps(to_row(item)) + "\n" for item in items))
        assert list(load(path).items) == items


@needs_data
def test_labelled_model_solutions_make_pairs_and_feedback():
    """GSM8K's 1319 problems with four solutions each. Counted in the file itself, solutions that only differ by blanks
    taken as one: 731 problems have a right and a wrong one, 156 right ones only, 432 wrong ones only."""
    loaded = load_judged(
        DATA / "gsm8k/example_model_solutions.jsonl",
        columns={"prompt": "question", "completion": "solution", "label": "is_correct"},
        spread=("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"),
    )
    assert len(loaded.items) == 4 * 1319
    assert {item.source for item in loaded.items if item.id.endswith(":7")} == {
        f"example_model_solutions/{model}_{kind}" for model in ("6b", "175b") for kind in ("finetuning", "verification")
    }
    built = build_pairs(loaded.items)
    assert len(built.items) == 731
    assert built.report.dropped == {"all_right": 156, "all_wrong": 432}
    assert built.report.length is not None and built.report.length.is_biased


@needs_data
@pytest.mark.parametrize(
    ("load", "pattern", "columns", "num"),
    [
        (load_problems, "gsm8k/train.jsonl", None, 7473),
        (load_conversations, "gsm8k/train.jsonl", None, 7473),
        (load_problems, "gsm8k/test.jsonl", None, 1319),
        (load_problems, "gsm8k/test_socratic.jsonl", None, 1319),
        (load_conversations, "gsm8k/test_socratic.jsonl", None, 1319),
        (load_conversations, "gsm8k/example_model_solutions.jsonl", {"answer": "ground_truth"}, 1319),
        (load_problems, "mawps/addsub.jsonl", None, 395),
        (load_problems, "mawps/singleop.jsonl", None, 562),
        (load_problems, "mawps/singleeq.jsonl", None, 508),
        (load_problems, "mawps/multiarith.jsonl", None, 600),
        (load_problems, "svamp/test.jsonl", None, 1000),
        (load_problems, "mmlu/dev/*.csv", None, 285),
        (load_problems, "mmlu/test/*.csv", None, 14042),
        (load_problems, "simple_safety_tests/*.csv", {"prompt": "prompts_final"}, 100),
        (load_problems, "humaneval/HumanEval.jsonl.gz", {"id": "task_id"}, 164),
    ],
)
def test_the_shared_data_load_whole(load, pattern, columns, num):
    """Counts: as published for GSM8K, SVAMP, MMLU (57 subjects, 5 each in dev), HumanEval; mawps: lines of a file."""
    loaded = load(sorted(DATA.glob(pattern)), columns=columns)
    assert len(loaded.items) == num
    texts = [message.content for item in loaded.items for message in item.messages]
    assert all(texts)
    if pattern.startswith("gsm8k/t"):
        assert not any("<<" in text for text in texts)
    if load is load_problems and pattern.split("/")[0] in ("gsm8k", "mawps", "svamp"):
        assert all(str(float(p.answer)).removesuffix(".0") == p.answer.removesuffix(".0") for p in loaded.items)
    if pattern.startswith("mmlu"):
        assert {p.answer for p in loaded.items} == set("ABCD")
