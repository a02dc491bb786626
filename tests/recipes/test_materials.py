"""Materials: what a recipe's tables become. Data sets are selected in a fixed order, and what is left out is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lydian.data.problems import Message
from lydian.data.selection import take_share
from lydian.errors import DataError, LydianError, RecipeError, VerifierError
from lydian.recipes.load import load_recipe
from lydian.recipes.materials import build_benchmark, build_verifier, load_set
from lydian.recipes.recipe import DataSet, DataSettings, Recipe, VerifierSettings
from tests.training.toys import Letters, problem

HEAD = """
name = "materials"
[model]
source = "tiny-untrained"
[template]
kind = "plain"
"""
BENCHMARK = """
[benchmark]
data = "questions"
verifier = "numeric"
sampling = { temperature = 0.0, max_tokens = 4 }
"""


class Words:
    """A template that counts words: all that selection asks of it."""

    name = "words"
    fingerprint = "words:1"
    stop_tokens = frozenset({0})

    def encode_prompt(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(range(sum(len(m.content.split()) for m in messages)))


def recipe(tmp_path: Path, data: str, rows: list[dict]) -> Recipe:
    """With the rows in rows.jsonl and `data` as the table of the set `questions`."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "materials.toml"
    path.write_text(f'{HEAD}[data]\nroot = "{tmp_path}"\n[data.questions]\n{data}\n{BENCHMARK}')
    return load_recipe(path)


def rows(num: int, **more: object) -> list[dict]:
    return [{"question": f"What is {k} plus {k}?", "answer": f"#### {2 * k}", **more} for k in range(num)]


def test_a_file_becomes_problems_with_facts_for_the_manifest(tmp_path: Path):
    loaded = load_set(recipe(tmp_path, 'path = "rows.jsonl"', rows(5)), "questions", Words())
    assert [p.question for p in loaded.items] == [row["question"] for row in rows(5)]
    assert loaded.facts["name"] == "questions" and loaded.facts["num"] == 5
    assert loaded.facts["path"] == "rows.jsonl" and len(loaded.facts["digest"]) == 64
    assert loaded.notes == ()


def test_selection_takes_duplicates_out_before_shares_lengths_and_limit(tmp_path: Path):
    """20 questions, one of them twice; half the shares; then the long ones out; then at most 4.

    What is left is a part of the share that the same 20 without the repeated one have: had the limit come first, or the
    lengths before the share, other rows would be left; every step that leaves rows out for their own sake says so.
    """
    long = {"question": "a " * 30 + "?", "answer": "#### 1"}
    given = [*rows(20), rows(20)[3], long]
    table = 'path = "rows.jsonl"\nshare = [0.0, 0.5]\nmax_tokens = 10\n'
    everything = load_set(recipe(tmp_path, 'path = "rows.jsonl"\n', given), "questions", Words()).items
    shared = take_share(everything, 0.0, 0.5, 0)
    short = [p for p in shared if len(p.question.split()) <= 10]
    loaded = load_set(recipe(tmp_path, table, given), "questions", Words())
    assert list(loaded.items) == short and 4 < len(short) < 20
    assert any("1 rows with the text of another" in note for note in loaded.notes)
    assert any(f"{len(shared) - len(short)} of {len(shared)} rows longer than 10" in note for note in loaded.notes)
    limited = load_set(recipe(tmp_path, table + "limit = 4", given), "questions", Words())
    assert len(limited.items) == limited.facts["num"] == 4
    assert {p.id for p in limited.items} <= {p.id for p in short}


def test_complementary_shares_hold_every_row_once(tmp_path: Path):
    parts = [
        load_set(recipe(tmp_path, f'path = "rows.jsonl"\nshare = {share}', rows(40)), "questions", Words()).items
        for share in ("[0.0, 0.3]", "[0.3, 1.0]")
    ]
    assert sorted(p.question for part in parts for p in part) == sorted(row["question"] for row in rows(40))
    assert all(parts)


def test_bad_rows_stop_the_load_or_are_skipped_and_named(tmp_path: Path):
    given = [*rows(2), {"question": 7, "answer": "#### 1"}]
    with pytest.raises(DataError, match=r"rows\.jsonl:3"):
        load_set(recipe(tmp_path, 'path = "rows.jsonl"', given), "questions", Words())
    loaded = load_set(recipe(tmp_path, 'path = "rows.jsonl"\non_bad_row = "skip"', given), "questions", Words())
    assert len(loaded.items) == 2
    assert len(loaded.notes) == 1 and "rows.jsonl:3" in loaded.notes[0]


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path):
    with pytest.raises(DataError, match=r"data\.questions.*3 of 3 rows longer than 2"):
        load_set(recipe(tmp_path, 'path = "rows.jsonl"\nmax_tokens = 2', rows(3)), "questions", Words())


def test_generated_sets_name_their_generator_and_digest_its_settings(tmp_path: Path):
    tables = ['generator = "arithmetic"\nsplit = "train"\nnum = 6\n' + more for more in ("", "", "seed = 1")]
    first, again, other = (load_set(recipe(tmp_path, table, []), "questions", Words()) for table in tables)
    assert first.items == again.items and first.facts == again.facts
    assert first.facts["path"] == "generator arithmetic" and first.facts["num"] == 6
    assert other.facts["digest"] != first.facts["digest"]


def test_a_generator_of_another_kind_is_refused(tmp_path: Path):
    made = recipe(tmp_path, 'path = "rows.jsonl"', rows(2))
    settings = DataSettings(kind="problems", generator="arithmetic_solutions")
    wrong = DataSet(name="questions", settings=settings, generator={"num": 2})
    object.__setattr__(made, "data", {"questions": wrong})
    with pytest.raises(RecipeError, match=r"data\.questions\.generator.*makes Conversations"):
        load_set(made, "questions", Words())


def test_benchmark_is_the_recipes(tmp_path: Path):
    made = recipe(tmp_path, 'path = "rows.jsonl"', rows(3))
    loaded = load_set(made, "questions", Words())
    benchmark = build_benchmark(made, loaded.items, Words())
    assert benchmark.name == "questions" and benchmark.problems == loaded.items
    assert benchmark.sampling == made.benchmark.sampling
    assert benchmark.spec.verifier == build_verifier(made.benchmark.verifier).fingerprint


def test_gold_answers_that_the_verifier_cannot_read_stop_before_sampling(tmp_path: Path):
    made = recipe(tmp_path, 'path = "rows.jsonl"', rows(1))
    with pytest.raises(VerifierError, match="'seven'"):
        build_benchmark(made, [problem("abc", "seven")], Letters())


def test_verifiers_are_built_with_their_settings():
    settings = VerifierSettings(name="pattern", settings={"pattern": "x+"})
    assert (
        build_verifier(settings).fingerprint
        != build_verifier(VerifierSettings(name="pattern", settings={})).fingerprint
    )
    with pytest.raises(LydianError, match="patern"):
        build_verifier(VerifierSettings(name="patern", settings={}))
