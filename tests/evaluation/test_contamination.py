"""What must be found, and what must not; shares counted by hand."""

from __future__ import annotations

import json

import pytest

from lydian.errors import DataError, InputError
from lydian.evaluation import contamination
from lydian.evaluation.clean_score import clean_scores
from lydian.evaluation.contamination import ContaminationIndex, tokens_of
from lydian.evaluation.texts import stream_texts

SEA = "Joan found 70 seashells on the beach and gave Sam some of her seashells so she has 27 left now"
OTHER = SEA.replace("70", "91").replace("27", "35")


def look(problems, *rows, **settings):
    index = ContaminationIndex(problems, **settings)
    for number, texts in enumerate(rows, start=1):
        index.add(f"train:{number}", texts)
    return index.result()


def test_tokens_keep_numbers_whole_and_split_scripts_without_blanks() -> None:
    assert tokens_of("It's 1,200.50 km, 12x; 5个苹果") == ["it", "s", "1,200.50", "km", "12x", "5", "个", "苹", "果"]


def test_an_exact_duplicate_is_found_among_other_fields() -> None:
    found = look({"a": SEA}, ["unrelated"], [SEA.upper() + "?", "the answer is 43"])
    assert found.exact == found.contaminated == ("a",) and found.overlaps[0].place == "train:2"
    assert found.clean == () and found.twins == ()


def test_a_question_within_a_longer_text_is_contaminated_and_not_exact() -> None:
    found = look({"a": SEA}, [f"Question 4: {SEA} Answer: 43"])
    assert found.contaminated == ("a",) and found.exact == () and found.overlaps[0].share == 1


def test_other_numbers_make_a_twin_not_a_duplicate() -> None:
    """20 tokens; the numbers stand 3rd and 18th. With other numbers, the 8-grams of tokens 4…17 match: 14 of 20."""
    found = look({"a": SEA}, [OTHER], threshold=0.8)
    assert found.contaminated == () and found.twins == ("a",)
    assert found.overlaps[0].share == pytest.approx(14 / 20) and found.overlaps[0].masked_share == 1


def test_a_shared_phrase_is_below_the_threshold() -> None:
    """Nine common tokens of twenty: 45 %."""
    found = look({"a": SEA}, [" ".join(SEA.split()[:9]) + " and then went home to eat"])
    assert found.overlaps[0].share == pytest.approx(9 / 20) and found.clean == ("a",)
    assert look({"a": SEA}, ["she found some on the beach"]).clean == ("a",)


def test_pieces_in_several_texts_do_not_add_up() -> None:
    """Each half of the problem in a text of its own: the larger half counts, not the sum."""
    words = SEA.split()
    found = look({"a": SEA}, [" ".join(words[:9])], [" ".join(words[9:])])
    assert found.overlaps[0].share == pytest.approx(11 / 20) and found.overlaps[0].place == "train:2"
    found = look({"a": SEA}, [" ".join(words[9:])], [" ".join(words[:9])])
    assert found.overlaps[0].share == pytest.approx(11 / 20) and found.overlaps[0].place == "train:1"


def test_repeats_inside_each_side() -> None:
    found = look({"a": SEA, "b": SEA + ".", "c": OTHER}, ["x 1"], ["x 1"], ["x 2"], ["y"])
    assert found.eval_repeats == (("b", "a"),) and found.eval_twins == (("c", "a"),)
    assert (found.num_train, found.train_repeats, found.train_twins) == (4, 1, 1)


def test_a_phrase_that_all_problems_have_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten problems end with one instruction of nine words; a training text with it holds none of them."""
    monkeypatch.setattr(contamination, "COMMON", (5, 0.01))
    ask = "please reason step by step and give the number"
    problems = {str(i): f"w{i} x{i} {ask}" for i in range(10)}
    found = look(problems, [f"another question {ask}"])
    assert found.contaminated == () and found.num_common > 0
    monkeypatch.setattr(contamination, "COMMON", (50, 0.01))
    assert len(look(problems, [f"another question {ask}"]).contaminated) == 10


def test_a_short_problem_is_found_as_a_duplicate_only() -> None:
    assert look({"a": "2 + 3 = ?"}, ["What is 2 + 3 then"]).clean == ("a",)
    assert look({"a": "2 + 3 = ?"}, ["2 + 3"]).exact == ("a",)


@pytest.mark.parametrize("bad", [{"num_gram": 0}, {"threshold": 0}, {"threshold": 1.1}])
def test_settings_are_checked(bad) -> None:
    with pytest.raises(InputError):
        ContaminationIndex({"a": "b"}, **bad)


def test_the_score_on_the_clean_part(make_report) -> None:
    """p0 and p1 are in training and right, p2 and p3 are not and wrong: 50 % overall, 0 % clean."""
    report = make_report(["c", "c", "w", "w"])
    tails = ["red", "blue", "green", "black"]
    texts = {f"p{i}": " ".join(f"{tail}{j}" for j in range(10)) for i, tail in enumerate(tails)}
    scores = clean_scores(report, look(texts, [texts["p0"]], [texts["p1"]]))
    assert scores["all"].value == 0.5 and scores["clean"].value == 0 and scores["clean"].num == 2
    assert scores["contaminated"].value == 1 and scores["twins"] is None
    with pytest.raises(DataError, match="p0"):
        clean_scores(report, look({"q": SEA}))


def test_files_are_streamed_with_their_places(tmp_path) -> None:
    path = tmp_path / "train.jsonl"
    rows = [{"question": "q", "messages": [{"role": "user", "content": "c"}], "n": 3}, {"text": "t"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert list(stream_texts([path])) == [(f"{path}:1", ["q", "user", "c"]), (f"{path}:2", ["t"])]
    path.write_text('{"a": "b"}\n{broken\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl:2"):
        list(stream_texts([path]))
    with pytest.raises(DataError, match=r"absent\.txt"):
        list(stream_texts([tmp_path / "absent.txt"]))
