"""`lydian pairs`: from files and evaluations to training data, with a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.data.rows import load_conversations, load_feedback, load_preferences
from tests.cli.test_evaluations import PROBLEMS, write

ROWS = [
    {"question": "1+1?", "answer": "it is two", "ok": "yes"},
    {"question": "1+1?", "answer": "three", "ok": "no"},
    {"question": "2+2?", "answer": "four", "ok": "yes"},
    {"question": "2+2?", "answer": "", "ok": "no"},
]
NAMES = ["--column", "prompt=question", "--column", "completion=answer", "--column", "label=ok"]
WORDS = ["--label", "yes=true", "--label", "no=false"]


def lydian(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def test_pairs_of_labelled_rows(rows: str, tmp_path: Path) -> None:
    """One prompt has a right and a wrong reply; the other's wrong one is empty, so that all that is left is right."""
    out = tmp_path / "made" / "pairs.jsonl"
    result = lydian("pairs", rows, "--out", str(out), *NAMES, *WORDS)
    assert result.exit_code == 0, result.output
    assert [(p.chosen, p.rejected) for p in load_preferences(out).items] == [("it is two", "three")]
    for line in (
        "read           4 judged replies to 2 prompts",
        "built          1 pairs",
        "left out       replies: 1 empty",
        "dropped        prompts: 1 too few",
        "judges         not stated (2 prompts)",
        "length         chosen minus rejected +2.0 words on average; the chosen longer in 1, shorter in 0, equal in 0",
    ):
        assert line in result.output


def test_replies_are_rewritten_before_they_are_compared(rows: str, tmp_path: Path) -> None:
    """Both rules apply, in order; what they make alike is one reply, with two labels that contradict each other."""
    out = tmp_path / "out.jsonl"
    rules = ["--rewrite", "s/it is //", "--rewrite", "s|t(w)o|t\\1O|"]
    result = lydian("pairs", rows, "--out", str(out), *NAMES, *WORDS, *rules)
    assert result.exit_code == 0, result.output
    assert [(p.chosen, p.rejected) for p in load_preferences(out).items] == [("twO", "three")]
    result = lydian("pairs", rows, "--out", str(out), *NAMES, *WORDS, "--rewrite", "s/.*(two|three)/x/")
    assert "1 repeated" in result.output and "built          0 pairs" in result.output
    assert result.exit_code == 1


@pytest.mark.parametrize("rule", ["", "s", "s/a", "s/a/b", "s/a/b/g", "s//b/", "s/(/b/", "s/a/\\1/", "saabaa"])
def test_a_rule_that_is_none_is_refused(rows: str, tmp_path: Path, rule: str) -> None:
    result = lydian("pairs", rows, "--out", str(tmp_path / "out.jsonl"), *NAMES, *WORDS, "--rewrite", rule)
    assert result.exit_code == 2 and "s/PATTERN/REPLACEMENT/" in result.output
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(("kind", "load", "num"), [("feedback", load_feedback, 3), ("best", load_conversations, 2)])
def test_feedback_and_best(rows: str, tmp_path: Path, kind: str, load, num: int) -> None:
    out = tmp_path / "out.jsonl"
    result = lydian("pairs", rows, "--out", str(out), "--as", kind, "--json", *NAMES, *WORDS)
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["kind"], report["num_items"], len(load(out).items)) == (kind, num, num)
    assert report["left_out"] == {"empty": 1} and report["skipped"] == []


def test_bad_rows_stop_or_are_listed(rows: str, tmp_path: Path) -> None:
    arguments = ["pairs", rows, "--out", str(tmp_path / "out.jsonl"), *NAMES, "--label", "yes=true"]
    stopped = lydian(*arguments)
    assert stopped.exit_code == 2 and "rows.jsonl:2: column 'ok'" in stopped.output
    skipped = lydian(*arguments, "--on-bad-row", "skip", "--as", "feedback")
    assert skipped.exit_code == 0, skipped.output
    assert f"skipped        {rows}:2: column 'ok': got str 'no'" in skipped.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--column", "prompt"], "NAME=VALUE"),
        (["--label", "up=yes"], "true or false"),
        (["--max-pairs", "0"], "an integer ≥ 1"),
        (["--column", "promt=question"], "Did you mean 'prompt'?"),
    ],
)
def test_wrong_settings(rows: str, tmp_path: Path, arguments: list[str], said: str) -> None:
    out = tmp_path / "out.jsonl"
    result = lydian(
        "pairs",
        rows,
        "--out",
        str(out),
        *(arguments if "promt=question" in arguments else [*NAMES, *WORDS, *arguments]),
    )
    assert result.exit_code == 2 and said in result.output
    assert not out.exists()


def test_the_records_of_an_evaluation(tmp_path: Path) -> None:
    """The best of one sample each: 30 of 40 are right. That they are a benchmark's is said."""
    write(tmp_path / "eggs", 30, name="base")
    out = tmp_path / "best.jsonl"
    for name in ("eggs.json", "eggs.records.jsonl"):
        result = lydian("pairs", str(tmp_path / name), "--out", str(out), "--as", "best")
        assert result.exit_code == 0, result.output
        assert "the benchmark eggs; what is trained on them it can no longer judge" in result.output
        found = load_conversations(out).items
        assert len(found) == 30 and found[0].messages[:-1] == PROBLEMS[0].messages
        assert "dropped        prompts: 10 all wrong" in result.output and "strict:1 (40 prompts)" in result.output


def test_a_systematic_difference_in_length_is_a_warning(tmp_path: Path) -> None:
    """Six pairs of which the right one is always longer: p = 2 / 2⁶ = 0.031."""
    path = tmp_path / "rows.jsonl"
    replies = [
        {"prompt": f"{k}", "completion": text, "label": is_up}
        for k in range(6)
        for text, is_up in (("a b", 1), ("c", 0))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in replies))
    output = lydian("pairs", str(path), "--out", str(tmp_path / "out.jsonl")).output
    assert "sign test p = 0.031" in output and "WARNING        chosen replies are systematically longer" in output
