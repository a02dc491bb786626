"""Every row of the table trains: three steps on a tiny model, with the real engine, credit and learner."""

from __future__ import annotations

import math

import pytest

from lydian.data.forest import Item
from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Message, Preference
from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.models.heads import head_for
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.recipes.bind import ErrorList, bind, bind_dataclass
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.collect import Corpus, Rollouts, Source
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.training.step_facts import STEP_FACTS
from lydian.verifiers import make_verifier
from tests.training.toys import VOCABULARY, Letters, engine, llama, problem, sequence

STAGE_TABLES = ("objective", "advantage", "sampling")


def given(algorithm: Algorithm) -> list[Preference | Stepwise | Labelled]:
    """Four items of the kind that the row trains on, where that is more than text to imitate."""
    asked = {letter: (Message(role="user", content=f"{letter}f"),) for letter in "fghi"}
    if algorithm.data == "preferences":
        kept = {"chosen": "ab", "rejected": "cde", "metadata": {"margin": 0.5}}
        return [Preference(id=letter, messages=messages, **kept) for letter, messages in asked.items()]
    if algorithm.data == "stepwise":
        kept = {"steps": ("ab", "cde"), "labels": (1.0, 0.0)}
        return [Stepwise(id=letter, messages=messages, **kept) for letter, messages in asked.items()]
    return [Labelled(id=letter, messages=messages, label=letter) for letter, messages in asked.items()]


def corpus(algorithm: Algorithm) -> list[Item]:
    if algorithm.data == "conversations":
        return [sequence(letter, "abc") for letter in "fghi"]
    return encode_items(given(algorithm), Letters())


def source(algorithm: Algorithm, settings: StageSettings) -> Source:
    if algorithm.data != "problems":
        return Corpus(corpus(algorithm))
    return Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-f]"),  # about half of all random replies have one of these
        problems=[problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=settings.num_samples,
        problems_per_round=0,
        credit=make_credit(algorithm, settings, advantage=bound(algorithm, "advantage"), max_tokens=4),
        seed=0,
        most_draws=settings.most_draws,
    )


def settings_of(algorithm: Algorithm) -> StageSettings:
    """The row's own defaults, for three rounds of one step."""
    table = {key: value for key, value in algorithm.defaults.items() if key not in STAGE_TABLES}
    errors = ErrorList(algorithm.name)
    settings = bind_dataclass(
        StageSettings,
        table | {"rounds": 3, "epochs": 1, "problems_per_round": 0, "batch_size": 0, "num_samples": 4},
        where=algorithm.name,
        errors=errors,
    )
    errors.raise_if_any()
    assert settings is not None
    return settings


def learner(algorithm: Algorithm, settings: StageSettings) -> Learner:
    teacher = Teacher(policy=Policy(llama(seed=1).requires_grad_(False)), num_tokens=VOCABULARY)
    known = given(algorithm) if algorithm.head == "class_logits" else []
    head = None if algorithm.is_policy or algorithm.head is None else head_for(algorithm.head, 32, known)
    return make_learner(
        Policy(llama(), head=head),
        algorithm,
        settings,
        objective=bound(algorithm, "objective"),
        max_tokens=4,
        teacher=teacher if algorithm.needs_teacher else None,
    )


def bound(algorithm: Algorithm, part: str) -> dict[str, object]:
    """The settings of the row's objective or advantage, as a recipe that says nothing gets them."""
    function, errors = getattr(algorithm, part), ErrorList(algorithm.name)
    if function is None:
        return {}
    settings = bind(function, algorithm.defaults.get(part, {}), where=part, errors=errors)
    errors.raise_if_any()
    return settings or {}


@pytest.mark.parametrize("name", [name for name, row in ALGORITHMS.items() if row.objective is not None])
def test_three_steps_of_each_row(name: str):
    """Weights move, every number is finite, and what the objective asks for is there."""
    algorithm = ALGORITHMS[name]
    settings = settings_of(algorithm)
    trainer, journal = learner(algorithm, settings), Quiet()
    before = trainer.weights().digest
    train(trainer, source(algorithm, settings), settings, journal, seed=0)
    assert trainer.weights().digest != before
    assert len(journal.metrics) == 3
    assert all(math.isfinite(value) for metrics in journal.metrics for value in metrics.values())
    assert any(metrics["gradient_norm"] > 0 for metrics in journal.metrics)
    told = "entropy" if algorithm.is_policy else "loss"
    assert all(told in metrics for metrics in journal.metrics if metrics["gradient_norm"] > 0)


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
