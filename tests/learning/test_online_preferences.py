"""Do the rows that train on their own judged samples learn, and go on bitwise? Random tiny Llamas, seconds each.

The same assertions fail for credits and losses broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lydian.data.forest import Item
from lydian.data.pair_rules import PairRules
from lydian.data.problems import Problem
from lydian.data.sequence import Pair
from lydian.data.trajectory import Sampling
from lydian.models.policy import Policy
from lydian.models.weights import weights_of
from lydian.objectives.likelihood import nll
from lydian.objectives.loss import Loss
from lydian.rollout.sample import sample
from lydian.training import rationalise
from lydian.training.algorithms import ALGORITHMS
from lydian.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydian.training.collect import Corpus, Rollouts, Source
from lydian.training.credit import Credit
from lydian.training.learner import Learner
from lydian.training.loop import Position, Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.rationalise import with_rationales
from lydian.training.reference import with_reference_logprobs
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import Verifier
from tests.training.toys import Letters, engine, llama, pair, problem, sequence

REWARDED = make_verifier("pattern", pattern="a")
OPTIMISER = OptimiserSettings(learning_rate=1e-2)
ONLINE = ["online_dpo", "online_ipo", "iterative_rpo", "online_kto"]


def settings_of(row: str, **changes) -> StageSettings:
    """The row's normaliser, reference and cache, and what the test changes."""
    names = ("normaliser", "reference", "reference_logprobs", "keep_per_problem", "hint", "restart")
    own = {name: value for name, value in ALGORITHMS[row].defaults.items() if name in names}
    return StageSettings(**{"optimiser": OPTIMISER, "pairs": PairRules(most=8)} | own | changes)


def rollouts(
    credit: Credit, *, problems: list[Problem] | None = None, verifier: Verifier = REWARDED, num_samples: int = 16
) -> Rollouts:
    return Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=verifier,
        problems=problems or [problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=num_samples,
        problems_per_round=0,
        credit=credit,
        seed=0,
    )


# ── Pairs and feedback: the verifier rewards replies with an `a` ────────────────────────────────────────────────────


@dataclass(frozen=True)
class Changed:
    """A credit whose items are changed on purpose."""

    credit: Credit
    change: Callable[[Item], Item]
    needs: tuple[str, ...] = field(default=())

    def items(self, groups, greedy_rewards):
        return [self.change(item) for item in self.credit.items(groups, greedy_rewards)]

    def assign(self, items):
        return list(items)

    def metrics(self, groups):
        return {}


def practise(
    row: str, *, change: Callable[[Item], Item] | None = None, loss: Callable[..., Loss] | None = None
) -> tuple[float, float]:
    """The reward before and after 30 rounds of one step on 4 problems × 16 replies of at most 4 tokens."""
    algorithm = ALGORITHMS[row]
    settings = settings_of(row, rounds=30)
    if loss is not None:
        algorithm = replace(algorithm, objective=loss)
    credit = make_credit(algorithm, settings, max_tokens=4)
    source = rollouts(Changed(credit, change) if change else credit)
    first = source.collect(0).metrics["reward"]
    train(make_learner(Policy(llama()), algorithm, settings, max_tokens=4), source, settings, Quiet(), seed=0)
    return first, source.collect(99).metrics["reward"]


def is_learned(rewards: tuple[float, float]) -> bool:
    """From about one in eight, as chance gives (1 − (31/32)⁴), to nine in ten."""
    before, after = rewards
    return before < 0.3 and after > 0.9


@pytest.mark.parametrize("row", ONLINE)
def test_the_row_learns_what_is_preferred(row: str):
    assert is_learned(practise(row))


def swapped(item: Item) -> Item:
    """The rejected completion as the chosen one; of feedback, the thumb turned."""
    if isinstance(item, Pair):
        better, worse = (replace(s, facts=dict(s.facts)) for s in (item.rejected, item.chosen))
        turned = [
            replace(s, facts=s.facts | {"is_chosen": side, "is_desirable": side})
            for s, side in ((better, 1.0), (worse, 0.0))
        ]
        return Pair(chosen=turned[0], rejected=turned[1])
    return replace(item, facts=item.facts | {"is_desirable": 1 - item.facts["is_desirable"]})


@pytest.mark.parametrize("row", ["online_dpo", "online_kto"])
def test_the_other_way_round_it_does_not(row: str):
    assert not is_learned(practise(row, change=swapped))


def blind(item: Item) -> Item:
    """Every reply is wanted, whatever the verdict."""
    return replace(item, facts=item.facts | {"is_desirable": 1.0})


def test_feedback_without_a_verdict_does_not():
    assert not is_learned(practise("online_kto", change=blind))


# ── STaR: what sampling never finds, a hint explains ────────────────────────────────────────────────────────────────

ANSWERS = {"f": "k", "g": "m", "h": "p", "i": "r"}
HINT = "z{answer}"


def copying() -> Policy:
    """A policy that answers `b` to every question, and that reads a hint: `fzk` → `k`."""
    plain = [sequence(question, "b") for question in ANSWERS]
    hinted = [sequence(f"{question}z{letter}", letter) for question in ANSWERS for letter in "kmpr"]
    learner = Learner(
        Policy(llama()),
        objective=nll,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-2, schedule="cosine", warmup_share=0.1),
    )
    train(learner, Corpus([*plain, *hinted]), StageSettings(epochs=60), Quiet(), seed=0)
    return learner.policy


def explain(policy: Policy, *, hint: str) -> tuple[dict[str, str], Quiet]:
    """Greedy replies to the questions after two rounds of STaR, and the metrics of its steps."""
    settings = settings_of("star", rounds=2, epochs=15, hint=hint)
    trainer = make_learner(policy, ALGORITHMS["star"], settings)
    problems = [problem(question, answer) for question, answer in ANSWERS.items()]
    credit = make_credit(ALGORITHMS["star"], settings, max_tokens=4)
    source = with_rationales(
        rollouts(credit, problems=problems, verifier=make_verifier("exact"), num_samples=8), settings
    )
    source.load(trainer.weights())
    journal = Quiet()
    train(trainer, source, settings, journal, seed=0)
    sampler = engine()
    sampler.load(weights_of(policy.model, 1))
    greedy = Sampling(temperature=0.0, max_tokens=4)
    found = sample(sampler, Letters(), problems, greedy, num_samples=1)
    return {t.problem_id: Letters().decode(t.turns[-1].completion.tokens) for (t,) in found}, journal


@pytest.fixture(scope="module")
def copied() -> dict:
    policy = copying()
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def start_of(copied: dict) -> Policy:
    model = llama()
    model.load_state_dict(copied)
    return Policy(model)


def test_star_learns_the_answers_that_no_sample_finds(copied: dict):
    """In the first round every trained completion came with a hint; in the second, none was needed."""
    replies, journal = explain(start_of(copied), hint=HINT)
    assert replies == ANSWERS
    first, last = journal.metrics[0], journal.metrics[-1]
    assert (first["accuracy"], first["hinted"], first["rationalised"]) == (0.0, 4.0, 1.0)
    assert first["hinted_accuracy"] > 0.9 and last["accuracy"] > 0.9 and last["rationalised"] == 0.0


def test_without_a_hint_there_is_nothing_to_learn_from(copied: dict):
    replies, journal = explain(start_of(copied), hint="")
    assert replies == dict.fromkeys(ANSWERS, "b")
    assert journal.metrics == []


def test_with_the_hint_left_in_the_prompt_it_learns_to_read_hints_only(copied: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rationalise, "_from_prompt", lambda trajectory, prompt: trajectory)
    replies, _ = explain(start_of(copied), hint=HINT)
    assert replies != ANSWERS


# ── Resuming ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Saving(Quiet):
    """Saves a checkpoint wherever one may be saved."""

    def __init__(self, learner: Learner, folder: Path) -> None:
        super().__init__()
        self.learner, self.folder = learner, folder
        self.paths: list[Path] = []

    def checkpoint(self, position: Position) -> None:
        self.paths.append(self.folder / f"{len(self.paths)}.pt")
        state = Checkpoint(stage=1, is_done=False, position=position, seconds=0.0, learner=self.learner.state())
        save_checkpoint(self.paths[-1], state)


def source_of(row: str, settings: StageSettings, learner: Learner, folder: Path) -> Source:
    algorithm = ALGORITHMS[row]
    if algorithm.data == "preferences":
        pairs: list[Item] = [pair(k, question, "ab", "cde") for k, question in enumerate("fghijklm")]
        path = folder / "reference.safetensors"
        return Corpus(with_reference_logprobs(pairs, learner, settings, path=path, template=Letters.fingerprint))
    credit = make_credit(algorithm, settings, max_tokens=4)
    problems = [problem(question, answer) for question, answer in zip("fghi", "abcd", strict=True)]
    verifier = make_verifier("pattern", pattern="[a-f]")
    return with_rationales(rollouts(credit, problems=problems, verifier=verifier, num_samples=3), settings)


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("online_dpo", {}),
        ("online_dpo", {"reference": "round"}),
        ("online_ipo", {"reference_logprobs": "cached"}),
        ("iterative_rpo", {}),
        ("online_kto", {}),
        ("online_kto", {"reference": "round", "reference_logprobs": "cached"}),
        ("star", {"hint": HINT}),
        ("rft", {"restart": True}),
        ("dpo", {"reference_logprobs": "cached"}),
        ("dpo", {"reference": "round", "reference_logprobs": "cached"}),
        ("kto", {"reference_logprobs": "cached"}),
    ],
)
def test_a_stage_goes_on_bitwise_from_every_checkpoint(row: str, changes: dict, tmp_path: Path):
    """Within rounds and between them, by a learner made of other weights (what a resumed run has in memory before it
    loads the state): the reference and the weights to restart from come from the checkpoint."""
    settings = settings_of(row, rounds=3, epochs=2, batch_size=6, checkpoint_steps=1, **changes)

    def trainer(seed: int) -> Learner:
        return make_learner(Policy(llama(seed)), ALGORITHMS[row], settings, max_tokens=4)

    whole = trainer(0)
    source, journal = source_of(row, settings, whole, tmp_path), Saving(whole, tmp_path)
    source.load(whole.weights())
    train(whole, source, settings, journal, seed=0)
    assert len(journal.paths) > 3
    for path in journal.paths[:: max(1, len(journal.paths) // 4)]:
        stored = load_checkpoint(path)
        assert stored is not None
        again, rest = trainer(1), Quiet()
        again.load_state(stored.learner)
        source = source_of(row, settings, again, tmp_path)
        source.load(again.weights())
        train(again, source, settings, rest, seed=0, start=stored.position)
        assert again.weights().digest == whole.weights().digest, path
        assert rest.metrics == journal.metrics[stored.position.step :]
