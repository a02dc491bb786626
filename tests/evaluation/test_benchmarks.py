"""Rows become frozen evaluators; what cannot be used is refused by name."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from lydian.data.problems import Conversation, Message, Problem
from lydian.data.trajectory import Finish
from lydian.errors import DataError, InputError, LydianError, MissingExtraError, RecipeError
from lydian.evaluation import benchmarks
from lydian.evaluation.benchmarks import (
    build_benchmark,
    load_row_problems,
    locate,
    make_row,
    read_row,
    sampling_of,
    shipped_rows,
)
from lydian.evaluation.prompting import FewShot, with_prompt
from lydian.evaluation.thinking import reply_after_thinking, without_thinking
from lydian.verifiers import VERIFIERS, make_verifier

DATA = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[2] / "../shared/data"))


class Characters:
    """One token a character; its name decides between chat and plain."""

    fingerprint, stop_tokens = "characters:1", frozenset({0})

    def __init__(self, name="plain"):
        self.name = name

    def encode_prompt(self, messages):
        return tuple(ord(c) for m in messages for c in m.content)

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def test_every_shipped_row_is_whole() -> None:
    rows = shipped_rows()
    assert {"gsm8k", "math", "svamp", "mawps", "mmlu", "humaneval", "ifeval", "simple_safety"} <= set(rows)
    assert {"over_refusal", "perplexity", "reasoning_gym"} <= set(rows)
    for row in rows.values():
        sampling_of(row)
        is_there = row.generator != "reasoning_gym" or importlib.util.find_spec("reasoning_gym")
        if row.measure == "accuracy" and row.verifier["name"] in VERIFIERS and is_there:
            make_verifier(**{"name": row.verifier["name"]} | {k: v for k, v in row.verifier.items() if k != "name"})


@pytest.mark.parametrize("name", ["gsm8k", "svamp", "mawps", "mmlu", "humaneval", "simple_safety"])
def test_the_real_files_load(name) -> None:
    row = read_row(name)
    try:
        paths = locate(row, DATA)
    except DataError:
        pytest.skip(f"the files of {name} are not here")
    assert paths and len(load_row_problems(row, DATA)) > 50


def test_a_benchmark_is_built_and_judges() -> None:
    row = make_row("mine", {"questions": ["a", "b"], "prompt": "Q: {question}\nA:", "verifier": {"name": "numeric"}})
    with pytest.raises(LydianError):  # the questions have no gold answer that numeric could read
        build_benchmark(row, Characters(), Path())
    gold = {"generator": "arithmetic", "generator_settings": {"split": "heldout", "num": 5}, "limit": 3}
    row = make_row("mine", gold | {"prompt": "{question}\nSteps:", "verifier": {"name": "gsm8k"}})
    benchmark = build_benchmark(row, Characters(), Path())
    assert benchmark.spec.num_problems == 3 and benchmark.problems[0].question.endswith("\nSteps:")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"questions": ["a"], "verifer": {"name": "x"}}, "Did you mean 'verifier'"),
        ({"questions": ["a"], "path": ["b"], "verifier": {"name": "x"}}, "one of path"),
        ({"questions": ["a"]}, "verifier"),
        ({"questions": ["a"], "verifier": {"name": "x"}, "prompt": "no place"}, "question"),
        ({"questions": ["a"], "verifier": {"name": "x"}, "few_shot": {"path": "p"}}, "few_shot"),
        ({"questions": ["a"], "verifier": {"name": "x"}, "thinking": "drop"}, "thinking"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused(table, said) -> None:
    with pytest.raises(RecipeError, match=said):
        make_row("mine", table)


def test_names_overrides_and_files(tmp_path) -> None:
    with pytest.raises(RecipeError, match="'gsm8k'"):
        read_row("gsm8")
    row = read_row("gsm8k", {"sampling.max_tokens": 7, "limit": 5, "path": "my.jsonl"})
    assert sampling_of(row).max_tokens == 7 and row.path == ("my.jsonl",) and row.limit == 5
    with pytest.raises(DataError, match="LYDIAN_DATA"):
        locate(row, tmp_path)
    file = tmp_path / "own.toml"
    file.write_text('questions = ["a"]\nverifier = { name = "exact" }\n', encoding="utf-8")
    assert read_row(str(file)).name == "own"
    with pytest.raises(RecipeError, match="TOML"):
        read_row(str(tmp_path / "absent.toml"))


def test_structured_columns_reach_the_verifier(tmp_path) -> None:
    lines = [{"key": k, "prompt": f"p{k}", "instruction_id_list": ["a:b"], "kwargs": [{"n": k}]} for k in (5, 6)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    problems = load_row_problems(read_row("ifeval", {"path": "x.jsonl"}), tmp_path)
    assert [p.id for p in problems] == ["5", "6"] and problems[1].metadata["kwargs"] == [{"n": 6}]
    assert set(problems[0].metadata) == {"instruction_id_list", "kwargs"}


def test_an_absent_generator_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match="reasoning-gym"):
        load_row_problems(read_row("reasoning_gym"), Path())


def example(name, question, reply):
    return Conversation(
        id=name, messages=(Message(role="user", content=question), Message(role="assistant", content=reply))
    )


ASK = Problem(id="1", messages=(Message(role="user", content="q"),))
SHOTS = FewShot(examples=(example("x", "q1", "r1"), example("y", "q", "r")))


def test_few_shot_in_a_chat_and_in_a_plain_prompt() -> None:
    """The second example is the problem itself: it is not shown to it."""
    (chat,) = with_prompt([ASK], prompt="<{question}>", system="s", few_shot=SHOTS, is_chat=True)
    assert [(m.role, m.content) for m in chat.messages] == [
        ("system", "s"), ("user", "<q1>"), ("assistant", "r1"), ("user", "<q>"),
    ]  # fmt: skip
    (plain,) = with_prompt([ASK], prompt="Q: {question}\nA:", system=None, few_shot=SHOTS, is_chat=False)
    assert plain.question == "Q: q1\nA: r1\n\nQ: q\nA:"


def test_several_messages_do_not_fit_a_plain_prompt() -> None:
    two = Problem(id="2", messages=(Message(role="system", content="s"), Message(role="user", content="q")))
    with pytest.raises(InputError, match="2 messages"):
        with_prompt([two], prompt="{question}", system=None, few_shot=FewShot(), is_chat=False)


def test_thinking_is_removed_by_the_rule_and_signed() -> None:
    assert reply_after_thinking("a</think>b</think>c") == "c" and reply_after_thinking("plain") == "plain"
    inner = make_verifier("numeric")
    outer = without_thinking(inner, "after_think")
    problem = Problem(id="1", messages=ASK.messages, answer="4")
    verdict = outer.verify(problem, "<think>maybe 4", Finish.STOP)
    assert str(verdict.outcome) == "unparsed" and verdict.verifier == outer.fingerprint != inner.fingerprint
    assert outer.verify(problem, "<think>3?</think>It is 4.", Finish.STOP).is_correct
    assert without_thinking(inner, "keep") is inner


def test_examples_of_the_question_s_own_subject(tmp_path) -> None:
    """Two subjects in files as MMLU has them: each question is preceded by the first example of its own subject."""
    for split, first in (("dev", 0), ("test", 5)):
        folder = tmp_path / "mmlu" / split
        folder.mkdir(parents=True)
        for subject in ("virology", "world_religions"):
            lines = [f"{subject} {n}?,a,b,c,d,{'ABCD'[n % 4]}" for n in range(first, first + 2)]
            (folder / f"{subject}_{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    row = read_row("mmlu_5shot", {"few_shot.num": 1})
    problems = load_row_problems(row, tmp_path)
    assert {problem.metadata["subject"] for problem in problems} == {"virology", "world_religions"}
    shots = benchmarks._few_shot(row, tmp_path)
    plain = with_prompt(problems, prompt=row.prompt, system=None, few_shot=shots, is_chat=False)
    asked = {problem.question for problem in plain}
    options = "\nA. a\nB. b\nC. c\nD. d\nAnswer:"
    assert f"virology 0?{options} A\n\nvirology 5?{options}" in asked and len(asked) == 4
    assert f"world_religions 0?{options} A\n\nworld_religions 6?{options}" in asked
    other = Problem(id="x", messages=ASK.messages, metadata={"subject": "law"})
    with pytest.raises(InputError, match="'law'"):
        shots.of(other)
    with pytest.raises(RecipeError, match="subject"):
        read_row("mmlu_5shot", {"subject": False})


def test_problems_of_reasoning_gym_are_judged_by_the_task_s_scorer() -> None:
    """Runs where the package is installed: its own answers are right, and a wrong one is not."""
    pytest.importorskip("reasoning_gym")
    row = read_row("reasoning_gym", {"generator_settings.size": 3})
    problems = load_row_problems(row, Path())
    assert [problem.id for problem in problems] == ["leg_counting:0:0", "leg_counting:0:1", "leg_counting:0:2"]
    verifier = make_verifier(**row.verifier)
    for problem in problems:
        verifier.check(problem)
        assert verifier.verify(problem, f"<answer>{problem.answer}</answer>", Finish.STOP).is_correct
        assert str(verifier.verify(problem, "<answer>-1</answer>", Finish.STOP).outcome) == "wrong"
    with pytest.raises(InputError, match="no_such_task"):
        load_row_problems(read_row("reasoning_gym", {"generator_settings.task": "no_such_task"}), Path())
