"""explain and show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.inspection import unit_of
from lydian.cli.main import app
from lydian.models.load import named_folder
from lydian.recipes.layers import shipped_names

TEXT = """
model = {source = "tiny"}
template = {kind = "plain", prompt = "{question}\\nSteps:"}
data.test = {generator = "arithmetic", num = 4, split = "heldout"}
data.solutions = {generator = "arithmetic_solutions", num = 4, kind = "conversations"}
benchmark = {data = "test", verifier = {name = "numeric"}}
stages = [{algorithm = "sft", data = "solutions"}, {algorithm = "grpo", data = "test"}]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "demo.toml"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def lydian(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_explain_says_value_unit_meaning_and_origin(recipe: str) -> None:
    result = lydian("explain", recipe, "stages.grpo.sampling.max_tokens=77")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("stages.grpo.sampling.max_tokens "))
    assert lines[place].split() == ["stages.grpo.sampling.max_tokens", "77", "tokens", "[override]"]
    assert lines[place + 1] == "    limit on new tokens"


def test_explain_marks_a_reward_without_gold_answers(recipe: str) -> None:
    """Also inside another verifier; each inner setting has a row of its own."""
    vote = '{name = "consensus", inner = {name = "numeric"}, min_share = 0.5}'
    parts = f'{{name = "threshold", at_least = 1.0, parts = {{vote = {vote}}}}}'
    for place, verifier in (("", vote), ("parts.vote.", parts)):
        result = lydian("explain", recipe, "--json", f"stages.grpo.verifier={verifier}")
        assert result.exit_code == 0, result.output
        rows = {row["key"]: row for row in json.loads(result.stdout)}
        assert rows[f"stages.grpo.verifier.{place}name"]["meaning"].startswith("Label-free: ")
        assert rows[f"stages.grpo.verifier.{place}min_share"]["value"] == 0.5
        assert rows[f"stages.grpo.verifier.{place}inner.name"]["value"] == "numeric"
        assert f"stages.grpo.verifier.{place}inner" not in rows
    assert "Label-free" not in rows["benchmark.verifier.name"]["meaning"]


def test_explain_as_json_has_the_same_rows(recipe: str) -> None:
    rows = {row["key"]: row for row in json.loads(lydian("explain", recipe, "--json").stdout)}
    assert rows["stages.grpo.normaliser"] == {
        "key": "stages.grpo.normaliser",
        "value": "sequence_mean",
        "unit": "",
        "meaning": rows["stages.sft.normaliser"]["meaning"],
        "from": "default of grpo",
    }
    assert rows["data.test.split"]["value"] == "heldout" and rows["data.test.split"]["from"] == "file demo.toml"


def test_explain_refuses_what_does_not_bind(recipe: str) -> None:
    result = lydian("explain", recipe, "stages.grpo.objective.clip_hgih=0.3")
    assert result.exit_code == 2
    assert "stages[1].objective.clip_hgih" in result.stderr and "Did you mean clip_high?" in result.stderr


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_explains_itself(name: str) -> None:
    rows = json.loads(lydian("explain", name, "--json").stdout)
    assert [row["key"] for row in rows if not row["meaning"]] == []


@pytest.mark.parametrize(
    ("key", "unit"),
    [("a.max_tokens", "tokens"), ("cpu_seconds", "seconds"), ("learning_rate", ""), ("a.limit", "rows")],
)
def test_units_follow_from_names(key: str, unit: str) -> None:
    assert unit_of(key) == unit


@pytest.mark.skipif(not named_folder("tiny").is_dir(), reason="the bundled tiny model is absent")
def test_show_prints_what_is_trained(recipe: str) -> None:
    """Of a conversation the reply and the stop token are trained; of a prompt nothing is."""
    conversation = lydian("show", recipe, "--start", "1", "--num", "2")
    assert conversation.exit_code == 0, conversation.output
    assert "data.solutions[1]" in conversation.output and "data.solutions[2]" in conversation.output
    assert conversation.output.count("tokens are trained") == 2 and " yes" in conversation.output
    prompt = lydian("show", recipe, "--data", "test")
    assert prompt.exit_code == 0, prompt.output
    assert "data.test[0]" in prompt.output and "\n0 of " in prompt.output and " yes" not in prompt.output


def test_show_names_the_sets_there_are(recipe: str) -> None:
    result = lydian("show", recipe, "--data", "train")
    assert result.exit_code == 2 and "test, solutions" in result.stderr
