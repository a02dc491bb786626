"""A stage's critic outlives it: what a later stage's critic starts from, and what lies on disk in between."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import lydian.recipes.run
from lydian.models.critic import own_critic
from lydian.models.heads import Head
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.objectives.policy_gradient import clip
from lydian.training.critic import ActorCritic, values_around
from lydian.training.learner import Learner
from lydian.training.optim import OptimiserSettings
from tests.recipes.killing import RECIPE, Kill, run, run_until_killed
from tests.recipes.test_methods import SAMPLED
from tests.recipes.test_run import assert_same_run, contents
from tests.training.toys import sequence

PPO = f"""
[[stages]]
name = "NAME"
algorithm = "ppo"
data = "train"
rounds = 1
epochs = 2
problems_per_round = 4
num_samples = 2
batch_size = 4
critic = {{ CRITIC, optimiser = {{ learning_rate = 1e-2 }} }}
{SAMPLED}"""
ADAPTERS = {
    "all weights": "",
    "lora": "adapter = { rank = 2 }\n",
    "prefix": 'adapter = { kind = "prefix", prefix_tokens = 2 }\n',
}


def two_stages(model: Path, first: str, adapter: str = "") -> str:
    """A critic, and one that starts from it; the network of the first is its own or shared."""
    stages = PPO.replace("NAME", "first").replace("CRITIC", f'network = "{first}"')
    stages += PPO.replace("NAME", "second").replace("CRITIC", 'start = "stage:first"')
    return RECIPE.replace("MODEL", str(model)).replace("[template]", f"{adapter}[template]") + stages


def values_of(critic: Policy) -> list[float]:
    """Before and after each token of some texts, whatever they mean to the model."""
    learner = Learner(critic, objective=clip, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=0.0))
    found = learner.measured([sequence("fg", "ab"), sequence("h", "cde")], functools.partial(values_around, critic))
    return [value for pairs in found.values() for pair in pairs for value in pair]


@pytest.mark.parametrize("first", ["own", "shared"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_critic_starts_where_that_of_an_earlier_stage_ended(
    first: str, adapter: str, untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """To the last bit, whether all weights, an adapter or keys in front were trained; and it goes on from there."""
    made: list[ActorCritic] = []
    before: list[list[float]] = []
    after: list[list[float]] = []
    make_learner = lydian.recipes.run.make_learner

    def watched(*args, **kwargs):
        after.extend(values_of(learner.critic.policy) for learner in made)
        made.append(make_learner(*args, **kwargs))
        before.append(values_of(made[-1].critic.policy))
        return made[-1]

    monkeypatch.setattr(lydian.recipes.run, "make_learner", watched)
    run(two_stages(untrained, first, ADAPTERS[adapter]), tmp_path / "run")
    assert set(before[0]) == {0.0} and max(map(abs, after[0])) > 1e-3  # it began new, and learned
    assert before[1] == after[0]
    one, other = made
    assert one.critic.policy.trainable().keys() == other.critic.policy.trainable().keys()
    assert values_of(other.critic.policy) != after[0]


def test_a_shared_critic_is_written_as_its_head_alone(untrained: Path, tmp_path: Path):
    """The trunk is the policy's, once on disk; the policy's folder has no head that a judge could take for its own."""
    run(two_stages(untrained, "shared"), tmp_path / "run")
    shared, own = (tmp_path / "run" / "models" / name for name in ("01_first", "02_second"))
    assert list(contents(shared / "critic", "**/*")) == ["head.safetensors"]
    assert {"head.safetensors", "model.safetensors"} < contents(own / "critic", "*").keys()
    assert not (shared / "head.safetensors").exists() and not (own / "head.safetensors").exists()
    assert Head.load(shared / "critic").output == Head.load(own / "critic").output == "value"


@pytest.mark.slow
def test_a_moved_run_takes_its_critics_along(tmp_path: Path):
    """The base of their adapters, which lies in the run alone, is found from within the policy's folder too."""
    run(two_stages(Path("tiny-untrained"), "own", ADAPTERS["lora"]), tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    folder = tmp_path / "moved" / "models" / "02_second"
    policy = Policy(load_model(folder, adapter="continue").model)
    assert max(map(abs, values_of(own_critic(policy, str(folder))))) > 1e-3


@pytest.mark.slow
def test_a_run_killed_in_a_stage_whose_critic_goes_on_ends_bitwise_the_same(untrained: Path, tmp_path: Path):
    """The critics are the same files too."""
    text, whole, out = two_stages(untrained, "own"), tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    for place in (whole, out):
        place.parent.mkdir()
    run(text, whole)
    owner = "lydian.recipes.run_dir:RunDir"
    run_until_killed(text, out, Kill(owner=owner, name="append_metrics", matching={"stage": "second"}, nth=2))
    run(text, out, resume=True)
    assert_same_run(out, whole)
    assert len(contents(out, "models/*/critic/*.safetensors")) == 4
