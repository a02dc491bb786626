"""Every row of the table trains: a few steps of a toy with all its weights, and one of a pretrained model with an
adapter; with the real engine, credit and learner."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Conversation, Message, Preference, Problem
from lydian.data.trajectory import Completion, Sampling
from lydian.errors import RecipeError
from lydian.models.heads import head_for
from lydian.models.policy import Policy
from lydian.models.weights import tensors_digest
from lydian.recipes.bind import ErrorList, bind, bind_dataclass
from lydian.rollout.best_of import BestOf
from lydian.rollout.engine import Request
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.collect import Corpus, Rollouts, Source
from lydian.training.critic import ActorCritic
from lydian.training.loop import AnyLearner, Quiet, train
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.training.step_facts import STEP_FACTS
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import verify_all
from tests.training.worlds import WORLDS, World

STAGE_TABLES = ("objective", "advantage", "sampling")
NUM_SAMPLES = 4
IN_EVERY_WORLD = [name if name == "letters" else pytest.param(name, marks=pytest.mark.slow) for name in WORLDS]


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()


def problems(world: World) -> list[Problem]:
    return [Problem(id=text, messages=(Message(role="user", content=text),)) for text in world.questions]


def given(algorithm: Algorithm, world: World) -> list[Conversation | Preference | Stepwise | Labelled]:
    """An item of the kind that the row trains on for each question."""
    better, worse = world.replies
    asked = {problem.id: problem.messages for problem in problems(world)}
    if algorithm.data == "conversations":
        reply = Message(role="assistant", content=better)
        return [Conversation(id=name, messages=(*messages, reply)) for name, messages in asked.items()]
    if algorithm.data == "preferences":
        kept = {"chosen": better, "rejected": worse, "metadata": {"margin": 0.5}}
        return [Preference(id=name, messages=messages, **kept) for name, messages in asked.items()]
    if algorithm.data == "stepwise":
        kept = {"steps": world.replies, "labels": (1.0, 0.0)}
        return [Stepwise(id=name, messages=messages, **kept) for name, messages in asked.items()]
    return [Labelled(id=name, messages=messages, label=name) for name, messages in asked.items()]


def source(algorithm: Algorithm, settings: StageSettings, world: World) -> Source:
    if algorithm.data != "problems":
        return Corpus(encode_items(given(algorithm, world), world.template))
    return Rollouts(
        engine=world.engine(),
        template=world.template,
        verifier=make_verifier("pattern", pattern=world.pattern),
        problems=problems(world),
        sampling=Sampling(max_tokens=world.max_tokens),
        num_samples=settings.num_samples,
        problems_per_round=0,
        credit=make_credit(algorithm, settings, advantage=bound(algorithm, "advantage"), max_tokens=world.max_tokens),
        seed=0,
        most_draws=settings.most_draws,
    )


def settings_of(algorithm: Algorithm, rounds: int = 3) -> StageSettings:
    """The row's own defaults, for rounds of one step."""
    table = {key: value for key, value in algorithm.defaults.items() if key not in STAGE_TABLES}
    errors = ErrorList(algorithm.name)
    settings = bind_dataclass(
        StageSettings,
        table | {"rounds": rounds, "epochs": 1, "problems_per_round": 0, "batch_size": 0, "num_samples": NUM_SAMPLES},
        where=algorithm.name,
        errors=errors,
    )
    errors.raise_if_any()
    assert settings is not None
    return settings


def learner(algorithm: Algorithm, settings: StageSettings, world: World) -> AnyLearner:
    policy = Policy(world.network())
    if not algorithm.is_policy and algorithm.head is not None:
        known = given(algorithm, world) if algorithm.head == "class_logits" else []
        policy.head = head_for(algorithm.head, policy.output.weight.shape[1], known)
    return make_learner(
        policy,
        algorithm,
        settings,
        objective=bound(algorithm, "objective"),
        max_tokens=world.max_tokens,
        teacher=world.teacher() if algorithm.needs_teacher else None,
    )


def bound(algorithm: Algorithm, part: str) -> dict[str, object]:
    """The settings of the row's objective or advantage, as a recipe that says nothing gets them."""
    function, errors = getattr(algorithm, part), ErrorList(algorithm.name)
    if function is None:
        return {}
    settings = bind(function, algorithm.defaults.get(part, {}), where=part, errors=errors)
    errors.raise_if_any()
    return settings or {}


def trained_by(trainer: AnyLearner) -> list[Policy]:
    """The policy, and a critic's own network."""
    return [trainer.policy, *([trainer.critic.policy] if isinstance(trainer, ActorCritic) else [])]


@pytest.mark.parametrize("world", IN_EVERY_WORLD, indirect=True)
@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.objective is not None])
def test_some_steps_of_each_row(name: str, world: World):
    """All that it trains moves, every number is finite, and what the objective asks for is there."""
    algorithm = ALGORITHMS[name]
    settings = settings_of(algorithm, world.rounds)
    trainer, journal = learner(algorithm, settings, world), Quiet()
    before = [tensors_digest(policy.trainable()) for policy in trained_by(trainer)]
    train(trainer, source(algorithm, settings, world), settings, journal, seed=0)
    for policy, digest in zip(trained_by(trainer), before, strict=True):
        assert tensors_digest(policy.trainable()) != digest
        assert all(parameter.isfinite().all() for parameter in policy.trainable().values())
    assert len(journal.metrics) == world.rounds
    assert all(math.isfinite(value) for metrics in journal.metrics for value in metrics.values())
    assert any(metrics["gradient_norm"] > 0 for metrics in journal.metrics)
    told = "entropy" if algorithm.is_policy else "loss"
    assert all(told in metrics for metrics in journal.metrics if metrics["gradient_norm"] > 0)


@pytest.mark.parametrize("world", IN_EVERY_WORLD, indirect=True)
@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.objective is None])
def test_a_row_that_trains_nothing_answers_with_the_best_of_its_samples(name: str, world: World):
    """The first of the samples with the highest score; on some question that is neither the first nor the last."""
    assert name == "best_of_n"
    engine, verifier, asked = world.engine(), make_verifier("pattern", pattern=world.pattern), problems(world)
    sampling = Sampling(max_tokens=world.max_tokens)
    answers = [
        Request(
            problem_id=problem.id,
            prompt=world.template.encode_prompt(problem.messages),
            num_samples=1,
            sampling=replace(sampling, temperature=0.0),
        )
        for problem in asked
    ]
    samples = engine.generate([replace(r, num_samples=NUM_SAMPLES, sampling=sampling) for r in answers])

    def scores(problem: Problem, group: Seq[Completion]) -> list[float]:
        texts = [(problem, world.template.decode(completion.tokens), completion.finish) for completion in group]
        return [verdict.score for verdict in verify_all(verifier, texts)]

    judged = [scores(problem, group) for problem, group in zip(asked, samples, strict=True)]
    best = [row.index(max(row)) for row in judged]
    assert any(0 < place < NUM_SAMPLES - 1 for place in best)
    chosen = BestOf(
        engine=engine,
        template=world.template,
        verifier=verifier,
        problems={problem.id: problem for problem in asked},
        sampling=sampling,
        num_samples=NUM_SAMPLES,
    ).generate(answers)
    assert [answer.tokens for (answer,) in chosen] == [
        group[place].tokens for group, place in zip(samples, best, strict=True)
    ]
    assert engine.version == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_are_consistent(name: str):
    """The key is the name; advantages come with problems; what the objective needs is what such data can provide."""
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name and algorithm.summary
    assert algorithm.advantage is None or algorithm.data == "problems"
    provided = {"logprobs", "entropy", "log_collision", "sequence", "reference_logprobs", "proximal_logprobs"}
    if algorithm.advantage is not None:
        provided |= {"advantage", "behaviour_logprobs"}
    if algorithm.data == "preferences" or algorithm.credit in ("pairs", "feedback"):
        provided |= {"pair", "is_chosen", "is_desirable", "pair_margin", *STEP_FACTS}
    if not algorithm.is_policy:
        provided |= {"score", "class_logits", "target_score", "label"}
    if algorithm.needs_teacher:
        provided |= {"logits", "teacher_logits", "teacher_logprobs"}
    assert set(algorithm.needs) <= provided


def test_normalisers_are_those_of_the_papers():
    found = {name: settings_of(row).normaliser for name, row in ALGORITHMS.items()}
    assert found["grpo"] == "sequence_mean"
    assert found["dr_grpo"] == found["rloo"] == "constant"
    assert found["dapo"] == found["sft"] == "token_mean"
    assert found["dpo"] == "pair_mean"


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"epochs": 0}, {"batch_size": -1}, {"num_samples": 0}, {"checkpoint_steps": 0}]
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, int]):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        StageSettings(**wrong)
