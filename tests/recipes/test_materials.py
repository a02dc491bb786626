"""Materials: what a recipe's tables become. Data sets are selected in a fixed order, and what is left out is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lydian.data.problems import Message
from lydian.data.selection import take_share
from lydian.errors import DataError, LydianError, RecipeError, TemplateError, VerifierError
from lydian.recipes.load import load_recipe
from lydian.recipes.materials import LoadedSet, build_benchmark, build_verifier, load_set
from lydian.recipes.recipe import DataSet, DataSettings, Recipe, VerifierSettings
from lydian.text.encoded import Encoded
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

    def encode_conversation(self, messages: tuple[Message, ...]) -> Encoded:
        """Refuses a conversation of several turns, as the plain template does."""
        if len(messages) > 2:
            raise TemplateError(where="words", given="several turns", expected="one", fix="Join them.")
        prompt, num = len(self.encode_prompt(messages[:-1])), len(self.encode_prompt(messages))
        trained = tuple(place >= prompt for place in range(num))
        return Encoded(tokens=tuple(range(num)), trained=trained, roles=("user",) * num)


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
    left_out = {"repeated": 1} | ({"too_long": len(shared) - len(short)} if len(shared) > len(short) else {})
    assert loaded.facts["left_out"] == left_out
    limited = load_set(recipe(tmp_path, table + "limit = 4", given), "questions", Words())
    assert len(limited.items) == limited.facts["num"] == 4
    assert {p.id for p in limited.items} <= {p.id for p in short}


def test_a_prompt_stands_around_the_last_question(tmp_path: Path):
    """It counts for the length and not for the share; of several turns the last question has it."""

    def load(data: str, given: list[dict] | None = None) -> LoadedSet:
        return load_set(recipe(tmp_path, f'path = "rows.jsonl"\n{data}', given or rows(20)), "questions", Words())

    half = "share = [0.0, 0.5]\n"
    plain, asked = load(half), load(half + 'prompt = "Q: {question} A:"')
    assert [p.question for p in asked.items] == [f"Q: {p.question} A:" for p in plain.items]
    assert [p.id for p in load(half + "max_tokens = 5").items] == [p.id for p in plain.items]
    with pytest.raises(DataError, match="longer than 5 tokens"):
        load(half + 'max_tokens = 5\nprompt = "Q: {question}"')
    turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    asked = load('prompt = "<{question}>"', [{"messages": turns, "answer": "1"}])
    assert [m.content for m in asked.items[0].messages] == ["a", "b", "<c>"]
    with pytest.raises(RecipeError, match="question"):
        load('prompt = "no place"')


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
    count, named = loaded.notes
    assert count == "1 of 3 rows skipped" and "rows.jsonl:3" in named
    assert loaded.facts["left_out"] == {"skipped": 1}


def test_what_the_template_cannot_lay_out_stops_or_is_skipped_and_named(tmp_path: Path):
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant") * 2]
    given = [{"messages": turns[:2]}, {"messages": turns}]
    table = 'path = "rows.jsonl"\nkind = "conversations"\nmax_tokens = 9\n'
    with pytest.raises(TemplateError, match=r"'rows:2': words: got several turns"):
        load_conversation_set(tmp_path, table, given)
    loaded = load_conversation_set(tmp_path, table + 'on_bad_row = "skip"', given)
    assert [item.id for item in loaded.items] == ["rows:1"]
    assert "1 of 2 rows skipped that the template cannot lay out" in loaded.notes
    assert any(note.startswith("skipped rows:2: words: got several turns") for note in loaded.notes)
    assert loaded.facts["left_out"] == {"template": 1}


def test_rows_that_are_too_long_are_counted_and_named(tmp_path: Path):
    """Prompt and reply together: 2 + 1 words fit into 3, 2 + 2 do not; none is cut."""
    given = [{"prompt": "how many", "completion": "x " * k} for k in (1, 2, 1, 3)]
    table = 'path = "rows.jsonl"\nkind = "conversations"\nmax_tokens = 3\n'
    loaded = load_conversation_set(tmp_path, table, given)
    assert [item.id for item in loaded.items] == ["rows:1", "rows:3"]
    assert loaded.notes == ("2 of 4 rows longer than 3 tokens left out: rows:2, rows:4",)


def load_conversation_set(tmp_path: Path, table: str, given: list[dict]) -> LoadedSet:
    """Of conversations, which no benchmark can be made of."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    path = tmp_path / "materials.toml"
    text = f'{HEAD}[data]\nroot = "{tmp_path}"\n[data.given]\n{table}\n[data.questions]\ngenerator = "arithmetic"\n'
    path.write_text(f'{text}num = 4\nsplit = "heldout"\n{BENCHMARK}')
    return load_set(load_recipe(path), "given", Words())


def test_feedback_says_how_it_is_balanced(tmp_path: Path):
    """3 up, 1 down: λ_U between (3/4) · 3 / 1 and 3 / 1 brings λ_D n_D / (λ_U n_U) between 1 and 4/3."""
    given = [{"prompt": "how many", "completion": f"{k}", "label": k != 2} for k in range(4)]
    table = 'path = "rows.jsonl"\nkind = "feedback"\n'
    loaded = load_conversation_set(tmp_path, table, given)
    assert [item.is_desirable for item in loaded.items] == [True, True, False, True]
    (note,) = loaded.notes
    assert note == "3 desirable and 1 undesirable replies: for kto an undesirable_weight of 2.25 to 3.00 evens this out"
    words = [row | {"label": "good" if row["label"] else "bad"} for row in given]
    stated = load_conversation_set(tmp_path, table + "labels = { good = true, bad = false }", words)
    assert stated.items == loaded.items
    (note,) = load_conversation_set(tmp_path, table, given[:2]).notes
    assert note == "2 desirable and 0 undesirable replies: kto and bco need both"


MIX = """
[data.mix]
mixture = { new = 0.75, old = 0.25 }
[data.new]
generator = "arithmetic"
num = 30
split = "train"
[data.old]
path = "rows.jsonl"
"""


def test_a_mixture_reports_what_it_is_made_of(tmp_path: Path):
    """5 old rows of 4 words at 3 : 1 allow 20 rows; shares of rows are exact, and what each set left out is said."""
    made = recipe(tmp_path, 'path = "rows.jsonl"\n' + MIX, [*rows(5), rows(5)[2]])
    loaded = load_set(made, "mix", Words())
    assert len(loaded.items) == loaded.facts["num"] == 20
    assert sum(item.id.startswith("old/") for item in loaded.items) == 5
    assert loaded.notes[0] == "20 rows in all: old is used up (max_epochs 1)"
    assert loaded.notes[1].startswith("new: 15 rows, 75.0% of the rows and ")
    assert loaded.notes[1].endswith("of the tokens; wanted 75.0% of the rows; 0.50 passes")
    assert loaded.notes[-1] == "old: 1 rows with the text of another left out"
    assert (loaded.facts["path"], loaded.facts["licence"]) == ("mixture of new, old", "Apache-2.0, unknown")
    old = loaded.facts["parts"][1]
    assert (old["name"], old["path"], old["num_tokens"], old["share_examples"]) == ("old", "rows.jsonl", 25, 0.25)
    assert load_set(made, "mix", Words()).facts == loaded.facts


def test_a_mixture_is_another_when_anything_of_it_is(tmp_path: Path):
    made = [
        load_set(recipe(tmp_path, 'path = "rows.jsonl"\n' + MIX.replace("\n[data.new]", more + "\n[data.new]"), given),
                 "mix", Words())
        for more, given in (("", rows(5)), ("\nseed = 1", rows(5)), ("\ncap_examples = 8", rows(5)), ("", rows(4)))
    ]  # fmt: skip
    assert len({loaded.facts["digest"] for loaded in made}) == 4
    assert len({tuple(item.id for item in loaded.items) for loaded in made}) == 4
    assert made[2].notes[0] == "8 rows in all: cap_examples is 8"


def test_a_cap_that_leaves_no_room_says_so(tmp_path: Path):
    made = recipe(
        tmp_path, 'path = "rows.jsonl"\n' + MIX.replace("\n[data.new]", "\ncap_tokens = 2\n[data.new]"), rows(5)
    )
    with pytest.raises(DataError, match=r"data\.mix: got no row: .*cap_tokens is 2"):
        load_set(made, "mix", Words())


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
    benchmark = build_benchmark(made.benchmark, loaded.items, Words())
    assert benchmark.name == "questions" and benchmark.problems == loaded.items
    assert benchmark.sampling == made.benchmark.sampling
    assert benchmark.spec.verifier == build_verifier(made.benchmark.verifier).fingerprint


def test_gold_answers_that_the_verifier_cannot_read_stop_before_sampling(tmp_path: Path):
    made = recipe(tmp_path, 'path = "rows.jsonl"', rows(1))
    with pytest.raises(VerifierError, match="'seven'"):
        build_benchmark(made.benchmark, [problem("abc", "seven")], Letters())


def test_verifiers_are_built_with_their_settings():
    settings = VerifierSettings(name="pattern", settings={"pattern": "x+"})
    assert (
        build_verifier(settings).fingerprint
        != build_verifier(VerifierSettings(name="pattern", settings={})).fingerprint
    )
    with pytest.raises(LydianError, match="patern"):
        build_verifier(VerifierSettings(name="patern", settings={}))
