"""Recipes from TOML strings: short forms, defaults, overrides, where values come from, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.models.adapters import AdapterSettings
from lydian.recipes.layers import parse_value
from lydian.recipes.load import load_recipe
from lydian.recipes.recipe import Recipe
from lydian.training.settings import StageSettings
from lydian.training.terms import KLInLoss

TEXT = """
description = "a demonstration"
expect = "about 40 %"

[model]
source = "tiny"

[template]
kind = "plain"
prompt = "{question}\\nSteps:"

[data]
test = "mawps/addsub.jsonl"
solutions = {kind = "conversations", path = ["gsm8k/train.jsonl"], share = [0, 0.5], limit = 100}
train = {generator = "arithmetic", num = 64, split = "train", unique = false}

[benchmark]
data = "test"
verifier = {name = "numeric", marker = "####"}
sampling = {temperature = 0, max_tokens = 64}

[[stages]]
algorithm = "sft"
data = "solutions"
optimiser = {weight_decay = 0.1}

[[stages]]
name = "rl"
algorithm = "grpo"
data = "train"
rounds = 3
objective = {clip_high = 0.28}
sampling = {max_tokens = 32}
"""


@pytest.fixture(autouse=True)
def no_data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LYDIAN_DATA", raising=False)


def load(folder: Path, *overrides: str, text: str = TEXT) -> Recipe:
    path = folder / "demo.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides)


def refused(folder: Path, *overrides: str, text: str = TEXT) -> str:
    with pytest.raises(RecipeError) as caught:
        load(folder, *overrides, text=text)
    return str(caught.value)


def origins(recipe: Recipe) -> dict[str, str]:
    return {item.key: item.origin for item in recipe.explained}


def test_what_a_file_says_and_what_it_leaves_out(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert (recipe.name, recipe.seed, recipe.expect) == ("demo", 0, "about 40 %")
    assert recipe.model.source == "tiny" and recipe.model.adapter is None
    assert recipe.template.kind == "plain"
    assert dict(recipe.template.settings) == {"prompt": "{question}\nSteps:", "stop": None}
    assert recipe.data["test"].settings.path == ("mawps/addsub.jsonl",)
    assert recipe.data["solutions"].settings.share == (0.0, 0.5)
    assert recipe.benchmark.name == "test"
    assert recipe.benchmark.verifier.settings["marker"] == "####"
    assert recipe.benchmark.sampling == Sampling(temperature=0.0, max_tokens=64)
    assert [stage.name for stage in recipe.stages] == ["sft", "rl"]


def test_a_generator_takes_its_own_keys_first(tmp_path: Path) -> None:
    """`split` is a setting of the generator and of data sets; it is the generator's. `unique` is the data set's."""
    train = load(tmp_path).data["train"]
    assert train.generator["num"] == 64 and train.generator["split"] == "train" and train.generator["max_level"] == 6
    assert train.settings.unique is False and train.settings.split == ""


def test_algorithm_defaults_lie_under_the_stage_and_over_the_general_ones(tmp_path: Path) -> None:
    """sft's row sets batch_size 32 and a cosine schedule; the stage adds weight_decay and must lose neither."""
    sft, rl = load(tmp_path).stages
    assert sft.settings.batch_size == 32
    assert (sft.settings.optimiser.schedule, sft.settings.optimiser.weight_decay) == ("cosine", 0.1)
    assert sft.settings.optimiser.learning_rate == 2e-5
    assert (rl.settings.rounds, rl.settings.normaliser) == (3, "sequence_mean")
    assert rl.settings.epochs == StageSettings().epochs
    assert dict(rl.objective) == {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}


def test_rollout_settings(tmp_path: Path) -> None:
    """Rollouts take the benchmark's verifier and the run's seed unless told otherwise; imitation has neither.

    The benchmark's own seed stays put: it is the same evaluator for every seed of the run.
    """
    sft, rl = load(tmp_path, "seed=3").stages
    assert sft.sampling is None and sft.verifier is None
    assert rl.sampling == Sampling(max_tokens=32, seed=3)
    assert load(tmp_path, "seed=3").benchmark.sampling.seed == 0
    assert rl.verifier == load(tmp_path).benchmark.verifier
    assert load(tmp_path, "stages.rl.verifier=math").stages[1].verifier.name == "math"
    assert load(tmp_path, "stages.rl.sampling.seed=9", "seed=3").stages[1].sampling.seed == 9


def test_a_verifier_of_others_is_resolved_to_its_leaves(tmp_path: Path) -> None:
    override = "benchmark.verifier={name='all_of', parts={format={name='format'}, content={name='numeric'}}}"
    parts = load(tmp_path, override).benchmark.verifier.settings["parts"]
    assert parts["content"] == {"name": "numeric", "marker": None, "relative_tolerance": 1e-9}
    message = refused(tmp_path, override.replace("name='numeric'", "name='numeric', marke='x'"))
    assert "benchmark.verifier.parts.content.marke" in message and "Did you mean marker?" in message


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("seed=7", lambda r: r.seed == 7),
        ("stages.rl.rounds=20", lambda r: r.stages[1].settings.rounds == 20),
        ("stages.1.rounds=20", lambda r: r.stages[1].settings.rounds == 20),
        ("stages[1].rounds=20", lambda r: r.stages[1].settings.rounds == 20),
        ("stages.rl.objective.clip_low=0.1", lambda r: r.stages[1].objective["clip_low"] == 0.1),
        ("stages.rl.kl.coef=0.1", lambda r: r.stages[1].settings.kl == KLInLoss(coef=0.1)),
        ("model.adapter.rank=4", lambda r: r.model.adapter == AdapterSettings(rank=4)),
        ("model.source=runs/x/models/01_sft", lambda r: r.model.source == "runs/x/models/01_sft"),
        ("data.test=a.jsonl", lambda r: r.data["test"].settings.path == ("a.jsonl",)),
        ("data.test.path=a.jsonl", lambda r: r.data["test"].settings.path == ("a.jsonl",)),
        ("data.test=['a.jsonl', 'b.jsonl']", lambda r: r.data["test"].settings.path == ("a.jsonl", "b.jsonl")),
        ("data.solutions.limit=none", lambda r: r.data["solutions"].settings.limit is None),
        ("benchmark.verifier=math", lambda r: r.benchmark.verifier.name == "math"),
        ("data.root=/data", lambda r: r.root == Path("/data")),
    ],
)
def test_overrides(tmp_path: Path, override: str, read: Callable[[Recipe], bool]) -> None:
    assert not read(load(tmp_path))
    assert read(load(tmp_path, override))


def test_an_override_of_a_set_by_a_path_keeps_what_is_said_of_its_rows(tmp_path: Path) -> None:
    solutions = load(tmp_path, "data.solutions=my.jsonl").data["solutions"].settings
    assert solutions.path == ("my.jsonl",)
    assert (solutions.kind, solutions.limit, solutions.share) == ("conversations", 100, (0.0, 0.5))


def test_a_path_takes_the_place_of_a_generator(tmp_path: Path) -> None:
    train = load(tmp_path, "data.train=my.jsonl").data["train"]
    assert train.settings.path == ("my.jsonl",) and train.settings.generator is None and train.generator == {}
    assert train.settings.unique is False


def test_an_override_can_add_an_adapter_and_take_it_away(tmp_path: Path) -> None:
    text = TEXT.replace('source = "tiny"', 'source = "tiny"\nadapter = {rank = 8}')
    assert load(tmp_path, text=text).model.adapter == AdapterSettings(rank=8)
    assert load(tmp_path, "model.adapter=none", text=text).model.adapter is None


def test_who_set_what(tmp_path: Path) -> None:
    found = origins(load(tmp_path, "stages.rl.sampling.temperature=0.7", "data.train.num=8"))
    assert found["name"] == "default" and found["description"] == "file demo.toml"
    assert found["data.test.path"] == "file demo.toml" and found["data.test.limit"] == "default"
    assert found["data.train.num"] == "override" and found["data.train.split"] == "file demo.toml"
    assert found["stages.sft.optimiser.schedule"] == "default of sft"
    assert found["stages.sft.optimiser.weight_decay"] == "file demo.toml"
    assert found["stages.rl.rounds"] == "file demo.toml" and found["stages.rl.epochs"] == "default"
    assert found["stages.rl.sampling.temperature"] == "override"
    assert found["stages.rl.sampling.seed"] == "seed"
    assert found["stages.rl.verifier.name"] == "benchmark.verifier"
    assert found["benchmark.name"] == "benchmark.data"
    assert found["data.root"] == "default"


def test_every_setting_is_explained_once_and_says_what_it_means(tmp_path: Path) -> None:
    recipe = load(tmp_path, "model.adapter.rank=4", "stages.rl.kl.coef=0.1")
    keys = [item.key for item in recipe.explained]
    assert len(keys) == len(set(keys))
    assert [item.key for item in recipe.explained if not item.doc] == []
    values = {item.key: item.value for item in recipe.explained}
    assert values["model.adapter.rank"] == 4 and values["stages.rl.kl.estimator"] == "k3"
    assert values["stages.rl.objective.clip_high"] == 0.28


@pytest.mark.parametrize("part", ["engine", "model"])
def test_no_memory_is_refused(tmp_path: Path, part: str) -> None:
    assert getattr(load(tmp_path, f"{part}.memory_gib=0.5"), part).memory_bytes == 1 << 29
    for wrong in ("0", "-1.0", "inf", "nan"):
        with pytest.raises(RecipeError, match=r"a number above 0|a finite number"):
            load(tmp_path, f"{part}.memory_gib={wrong}")


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(tmp_path).root == Path("data")
    monkeypatch.setenv("LYDIAN_DATA", str(tmp_path))
    recipe = load(tmp_path)
    assert recipe.root == tmp_path and origins(recipe)["data.root"] == "variable LYDIAN_DATA"
    assert load(tmp_path, "data.root=elsewhere").root == Path("elsewhere")


def test_paths_are_looked_for_in_the_data_folder_and_then_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "both.jsonl").touch()
    (tmp_path / "both.jsonl").touch()
    (tmp_path / "here.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    recipe = load(tmp_path)
    assert recipe.locate("both.jsonl") == "data/both.jsonl"
    assert recipe.locate("here.jsonl") == "here.jsonl"
    assert recipe.locate("owner/name") == "owner/name"


def test_the_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = load(tmp_path, "model.adapter.rank=4", "stages.rl.kl.coef=0.1", "stages.rl.num_samples=4")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.as_dict(), allow_nan=False), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.json")
    assert again == recipe and again.digest == recipe.digest


def test_a_mixture_has_its_settings_beside_it(tmp_path: Path) -> None:
    recipe = load(tmp_path, "data.mix={mixture = {train = 3, test = 1}, cap_tokens = 900}", "benchmark.data=mix")
    mix = recipe.data["mix"]
    assert mix.settings.mixture == {"train": 3.0, "test": 1.0}
    caps = {"cap_examples": None, "cap_tokens": 900}
    assert mix.generator == {"weigh_by": "examples", **caps, "max_epochs": 1.0, "seed": 0}
    assert recipe.with_parts(["solutions", "mix"]) == ["solutions", "mix", "train", "test"]
    explained = {item.key: (item.value, item.origin) for item in recipe.explained}
    assert explained["data.mix.cap_tokens"] == (900, "override")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.as_dict(), allow_nan=False), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.json") == recipe


def test_feedback_is_for_objectives_that_look_at_single_replies(tmp_path: Path) -> None:
    """kto and bco take preferences or feedback; dpo needs both replies, and says what it takes."""
    thumbs = "data.thumbs={kind = 'feedback', path = 'log.jsonl', labels = {up = true}}"
    pairs = "data.pairs={kind = 'preferences', path = 'pairs.jsonl'}"
    for algorithm in ("kto", "bco"):
        for name in ("thumbs", "pairs"):
            recipe = load(tmp_path, thumbs, pairs, text=offline(algorithm, name))
            assert recipe.stages[0].data == name
    message = refused(tmp_path, thumbs, text=offline("dpo", "thumbs"))
    assert "stages[0].data: got 'thumbs', a set of feedback; expected a set of preferences" in message
    message = refused(tmp_path, text=offline("kto", "train"))
    assert "got 'train', a set of problems; expected a set of preferences or feedback" in message


def offline(algorithm: str, data: str) -> str:
    return TEXT.partition("[[stages]]")[0] + f'[[stages]]\nalgorithm = "{algorithm}"\ndata = "{data}"\n'


def test_the_digest_is_of_what_changes_numbers(tmp_path: Path) -> None:
    digest = load(tmp_path).digest
    assert load(tmp_path, "description=other", "expect=other", "data.root=/elsewhere").digest == digest
    assert load(tmp_path, "seed=1").digest != digest
    assert load(tmp_path, "stages.rl.objective.clip_low=0.1").digest != digest


@pytest.mark.parametrize(
    ("override", "place", "hint"),
    [
        ("stages.rl.objective.clip_hgih=0.3", "stages[1].objective.clip_hgih", "Did you mean clip_high?"),
        ("stages.rl.clip_high=0.3", "stages[1].clip_high", "Did you mean objective.clip_high?"),
        ("stages.rl.rouns=3", "stages[1].rouns", "Did you mean rounds?"),
        ("stages.rl.rounds='3'", "stages[1].rounds", "a valid integer"),
        ("stages.rl.rounds=0", "stages[1].rounds", "an integer ≥ 1"),
        ("stages.rl.optimiser.learning_rate=-1.0", "stages[1].optimiser.learning_rate", "≥ 0"),
        ("stages.rl.algorithm=grpoo", "stages[1].algorithm", "Did you mean grpo?"),
        ("stages.rl.data=tarin", "stages[1].data", "Did you mean train?"),
        ("stages.rl.data=solutions", "stages[1].data", 'data.solutions.kind = "problems"'),
        ("stages.sft.sampling.temperature=1.0", "stages[0].sampling", "sft has no sampling"),
        ("stages.sft.advantage={}", "stages[0].advantage", "sft has no advantage"),
        ("stages.rl.name=sft", "stages[1].name", "a name of its own"),
        ("stages.rl.name=base", "stages[1].name", "a name of its own"),
        ("stages.rll.rounds=3", "override 'stages.rll.rounds=3'", "Did you mean rl?"),
        ("stages.5.rounds=3", "override 'stages.5.rounds=3'", "an index below 2"),
        ("stages.rl=3", "override 'stages.rl=3'", "stages.rl.setting=value"),
        ("seed", "override 'seed'", "key.path=value"),
        ("data=3", "data", "a table"),
        ("stages=3", "stages", "a list of tables"),
        ("template=3", "template", "a table of settings"),
        ("seed.x=1", "seed", "a valid integer"),
        ("model.source.x=1", "override 'model.source.x=1'", "model.source=…"),
        ("sede=1", "sede", "Did you mean seed?"),
        ("bench.data=x", "bench", "Did you mean benchmark?"),
        ("model.dtype=float16", "model.dtype", "'auto', 'float32' or 'bfloat16'"),
        ("model.adapter.rank=0", "model.adapter.rank", "an integer of at least 1"),
        ("template.promt=x", "template.promt", "Did you mean prompt?"),
        ("template.kind=plane", "template.kind", "Did you mean plain?"),
        ("benchmark.data=train2", "benchmark.data", "Did you mean train?"),
        ("benchmark.verifier=numerc", "benchmark.verifier.name", "Did you mean numeric?"),
        ("benchmark.verifier.market=x", "benchmark.verifier.market", "Did you mean marker?"),
        ("benchmark.sampling.top_p=2", "benchmark.sampling.top_p", "a number in (0, 1]"),
        ("data.train.nmu=3", "data.train.nmu", "Did you mean num?"),
        ("data.train.generator=arithmetics", "data.train.generator", "Did you mean arithmetic?"),
        ("data.train.path=x.jsonl", "data.train", "one of the three"),
        ("data.train.labels={up = true}", "data.train.labels", "labels of feedback only"),
        ("data.test={mixture = {train = 1}, share_seed = 1}", "data.test.share_seed", "the sets have their own"),
        ("data.test={mixture = {train = 0}}", "data.test.mixture", "sets with weights > 0"),
        ("data.test={mixture = {tarin = 1}}", "data.test.mixture", "Did you mean train?"),
        ("data.test={mixture = {solutions = 1}}", "data.test.mixture", "a set of problems"),
        ("data.test={mixture = {test = 1}}", "data.test.mixture", "the mixture 'test'"),
        ("data.test={mixture = {train = 1}, cap_token = 5}", "data.test.cap_token", "Did you mean cap_tokens?"),
        ("data.test={mixture = {train = 1}, weigh_by = 'rows'}", "data.test.weigh_by", "'examples' or 'tokens'"),
        ("data.test.share=[0.5, 0.2]", "data.test.share", "low < high"),
        ("data.test.limit=0", "data.test.limit", "an integer ≥ 1"),
        ("data.test=3", "data.test", "a table of settings"),
    ],
)
def test_what_is_refused_names_its_place(tmp_path: Path, override: str, place: str, hint: str) -> None:
    message = refused(tmp_path, override)
    assert f"{place}: " in message
    assert hint in message


def test_all_errors_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, "sede=1", "stages.rl.rounds='3'", "stages.sft.epochs=0", "data.test.limit=0", "oops")
    assert "5 settings" in message
    for place in ("sede", "stages[1].rounds", "stages[0].epochs", "data.test.limit", "override 'oops'"):
        assert f"  {place}: " in message


@pytest.mark.parametrize("table", ["model", "benchmark", "data"])
def test_a_missing_table_is_named(tmp_path: Path, table: str) -> None:
    text = "\n".join(line for line in TEXT.splitlines() if line != f"[{table}]").replace("[[stages]]", "[[stages]]")
    assert f"{table}: got nothing; expected a table" in refused(tmp_path, text=text)


def test_broken_toml_says_where(tmp_path: Path) -> None:
    message = refused(tmp_path, text="seed = \n")
    assert "demo.toml" in message and "line 1" in message


def test_an_unknown_recipe_is_named_with_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lydian.recipes.layers.SHIPPED", tmp_path)
    (tmp_path / "quickstart.toml").write_text(TEXT, encoding="utf-8")
    assert load_recipe("quickstart").name == "quickstart"
    with pytest.raises(RecipeError, match=r"Did you mean quickstart\?"):
        load_recipe("quikstart")
    with pytest.raises(RecipeError, match=r"neither \.toml nor \.json"):
        load_recipe(__file__)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("'3'", "3"),
        ("three", "three"),
        ("../data/x.jsonl", "../data/x.jsonl"),
        ("{a = 1}", {"a": 1}),
        ("none", None),
        ("a = b", "a = b"),
        ("1\nseed = 2", "1\nseed = 2"),
        ("", ""),
    ],
)
def test_override_values(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value and type(parsed) is type(value)
