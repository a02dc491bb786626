"""The loop: batches, rounds, publications, checkpoints, by a learner that only takes notes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lydian.data.sequence import Sequence
from lydian.training import loop
from lydian.training.collect import Collected
from lydian.training.loop import Position, train
from lydian.training.settings import StageSettings
from tests.training.toys import group, sequence


class Notes:
    """A learner that writes down what is asked of it; it marks the items of a round of several steps by a stream."""

    def __init__(self, needs: tuple[str, ...] = ("logprobs",)) -> None:
        self.needs = needs
        self.calls: list[tuple] = []
        self.version = 0

    def accumulate(self, items):
        self.calls.append(("accumulate", [s.id for s in items]))
        self.saw_proximal = ["proximal_logprobs" in s.streams for s in items]
        return {"loss": float(len(items))}

    def step(self, progress):
        self.calls.append(("step", progress))
        return {"gradient_norm": 1.0}

    def publish(self):
        self.version += 1
        self.calls.append(("publish", self.version))
        return self.version

    def with_fixed_policies(self, items, *, num_steps):
        if "proximal_logprobs" not in self.needs or num_steps < 2:
            return items
        self.calls.append(("proximal", len(items)))
        marked = {"proximal_logprobs": (0.0,) * 3}
        return [Sequence(id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, streams=marked) for s in items]

    def batches(self) -> list[list[str]]:
        return [call[1] for call in self.calls if call[0] == "accumulate"]


@dataclass
class Sampled:
    """A source of a few new sequences each round, with metrics; notes which weights it was given and what was asked."""

    sizes: list[int]
    loaded: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def load(self, weights):
        self.loaded.append(weights)

    def assign(self, items):
        return list(items)

    def collect(self, round, progress=None):
        self.asked.append(round)
        items = [sequence("a", "b", id=f"{round}/{k}") for k in range(self.sizes[round])]
        return Collected(items=items, metrics={"reward": float(round)}, groups=[group("a", ("b", 1.0))])


@dataclass
class Fixed(Sampled):
    """The same, as a corpus: no groups, no metrics."""

    def collect(self, round, progress=None):
        self.asked.append(round)
        return Collected(items=[sequence("a", "b", id=f"c/{k}") for k in range(self.sizes[0])])


class Diary:
    """A journal that keeps everything."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.steps: list[tuple[Position, int, dict]] = []
        self.saved: list[Position] = []
        self.events: list[str] = []

    def collected(self, round, collected):
        self.rounds.append(round)

    def stepped(self, position, num_steps, seconds, metrics):
        self.steps.append((position, num_steps, metrics))

    def checkpoint(self, position):
        self.saved.append(position)

    def event(self, kind, message):
        self.events.append(kind)

    def sampling(self, round):
        return None


def settings(**changes) -> StageSettings:
    return StageSettings(**{"batch_size": 4, "checkpoint_steps": 100} | changes)


def test_batches_partition_the_items_in_a_seeded_order_each_epoch():
    """10 items in batches of 4: sizes 4 4 2, every item once an epoch; another order each epoch, round and seed."""
    orders = {}
    for seed in (0, 1, 0):
        learner = Notes()
        train(learner, Fixed([10]), settings(epochs=2, rounds=2), Diary(), seed=seed)
        batches = learner.batches()
        assert [len(b) for b in batches] == [4, 4, 2] * 4
        epochs = [[item for batch in batches[3 * e : 3 * e + 3] for item in batch] for e in range(4)]
        assert all(sorted(epoch) == sorted(f"c/{k}" for k in range(10)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 4
        assert orders.setdefault(seed, batches) == batches
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("num", "size", "sizes"),
    [(9, 4, [4, 5]), (10, 4, [4, 4, 2]), (8, 4, [4, 4]), (1, 4, [1]), (3, 1, [1, 1, 1]), (5, 4, [5])],
)
def test_one_item_left_over_joins_the_batch_before(num: int, size: int, sizes: list[int]):
    """KTO compares each reply with one to another prompt, which a step of one item has not. Batches of one stay."""
    learner = Notes()
    train(learner, Fixed([num]), settings(batch_size=size), Diary())
    assert [len(batch) for batch in learner.batches()] == sizes


def test_batch_size_zero_takes_the_whole_round_as_it_is():
    learner = Notes()
    train(learner, Fixed([5]), settings(batch_size=0), Diary(), seed=0)
    assert learner.batches() == [[f"c/{k}" for k in range(5)]]


def test_progress_runs_through_the_stage_in_the_middle_of_each_step():
    """Two rounds of two steps: ⅛, ⅜, ⅝, ⅞, so no step of a warm-up has rate 0; the total announced with each is 4."""
    learner, diary = Notes(), Diary()
    end = train(learner, Fixed([8]), settings(rounds=2), diary, seed=0)
    assert [call[1] for call in learner.calls if call[0] == "step"] == [0.125, 0.375, 0.625, 0.875]
    assert [total for _, total, _ in diary.steps] == [4, 4, 4, 4]
    assert [p.step for p, _, _ in diary.steps] == [1, 2, 3, 4]
    assert end == Position(round=2, step=4)


def test_each_round_publishes_once_and_loads_before_the_next_is_collected():
    learner, source = Notes(), Sampled([4, 4, 4])
    train(learner, source, settings(rounds=3), Diary(), seed=0)
    assert source.loaded == [1, 2, 3]
    assert [name for name, _ in learner.calls] == ["accumulate", "step", "publish"] * 3


def test_proximal_policy_is_fixed_only_where_a_round_has_several_steps():
    needs = ("logprobs", "proximal_logprobs", "advantage")
    many, one, other = Notes(needs), Notes(needs), Notes()
    train(many, Sampled([8]), settings(), Diary(), seed=0)
    train(one, Sampled([4]), settings(), Diary(), seed=0)
    train(other, Sampled([8]), settings(), Diary(), seed=0)
    assert many.calls[0] == ("proximal", 8) and all(many.saw_proximal)
    assert not any(name == "proximal" for name, _ in one.calls + other.calls)
    epochs = Notes(needs)
    train(epochs, Sampled([4]), settings(epochs=2), Diary(), seed=0)
    assert epochs.calls[0] == ("proximal", 4)


def test_metrics_of_the_round_stand_at_each_of_its_steps():
    diary = Diary()
    train(Notes(), Sampled([8, 4]), settings(rounds=2), diary, seed=0)
    assert [m["reward"] for _, _, m in diary.steps] == [0.0, 0.0, 1.0]
    assert [m["loss"] for _, _, m in diary.steps] == [4.0, 4.0, 4.0]
    assert diary.rounds == [0, 1]


def test_an_empty_round_is_said_trains_nothing_and_the_next_goes_on():
    learner, diary = Notes(), Diary()
    end = train(learner, Sampled([0, 4]), settings(rounds=2), diary, seed=0)
    assert diary.events == ["empty_round"]
    assert [len(b) for b in learner.batches()] == [4]
    assert end == Position(round=2, step=1)


def test_checkpoints_come_every_few_steps_and_keep_sampled_items():
    """Rounds of 3 steps, a checkpoint every 2 steps: within rounds after steps 2 and 4 (6 ends round 1), with the
    items and metrics; the bound between rounds comes after every max(1, 2 // 3) = 1 round."""
    diary = Diary()
    train(Notes(), Sampled([12, 12]), settings(rounds=2, checkpoint_steps=2), diary, seed=0)
    assert [(p.round, p.step_in_round, p.step) for p in diary.saved] == [(0, 2, 2), (1, 0, 3), (1, 1, 4)]
    within, between, later = diary.saved
    assert within.items is not None and len(within.items) == 12 and within.metrics == {"reward": 0.0}
    assert between.items is None and between.metrics == {}
    assert later.metrics == {"reward": 1.0}


def test_corpora_are_not_kept_in_checkpoints():
    diary = Diary()
    train(Notes(), Fixed([12]), settings(checkpoint_steps=1), diary, seed=0)
    assert [p.items for p in diary.saved] == [None, None]


@pytest.mark.parametrize("source", [Sampled, Fixed])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_stage_goes_on_from_any_checkpoint_as_if_never_interrupted(source, epochs: int):
    """From each position saved: the rest of the batches, progress, positions, totals and metrics are the same, and a
    round that was under way is not collected again."""
    chosen = settings(rounds=3, epochs=epochs, checkpoint_steps=1)
    needs = ("logprobs", "proximal_logprobs")
    learner, diary = Notes(needs), Diary()
    end = train(learner, source([10, 9, 3]), chosen, diary, seed=5)
    assert len(diary.saved) > 4
    for position in diary.saved:
        again, notes, from_here = Notes(needs), Diary(), source([10, 9, 3])
        assert train(again, from_here, chosen, notes, seed=5, start=position) == end
        assert notes.steps == diary.steps[position.step :]
        assert again.batches() == learner.batches()[position.step :]
        assert from_here.loaded == list(range(1, 4 - position.round))
        assert from_here.asked[:1] != [position.round] or position.items is None


def test_the_journal_may_be_left_out():
    learner = Notes()
    assert train(learner, Fixed([4]), settings(rounds=2), seed=0).step == 2
    assert learner.version == 2


class Drifting(Notes):
    """Measures one of these KLs at each step."""

    def __init__(self, kls: list[float]) -> None:
        super().__init__()
        self.kls = iter(kls)

    def accumulate(self, items):
        return super().accumulate(items) | {"kl_k3": next(self.kls)}


KLS = [0.0, 0.0, 0.0, 0.1, 0.2, 0.6] + 12 * [0.0]
"""Rounds of three epochs of batches of 4, 4 and 2 items: the second epoch's mean is (4 · .1 + 4 · .2 + 2 · .6)/10 = .24
over items; over steps it would be .3."""


@pytest.mark.parametrize(("target", "first_round"), [(0.23, 6), (0.25, 9)])
def test_a_round_ends_after_an_epoch_that_moved_the_policy_too_far(target: float, first_round: int):
    """Below .24 the first round has two epochs, above it all three; the next round begins anew."""
    learner, diary = Drifting(KLS), Diary()
    chosen = settings(rounds=2, epochs=3, target_kl=target, checkpoint_steps=1)
    end = train(learner, Sampled([10, 10]), chosen, diary, seed=0)
    assert [p.round for p, _, _ in diary.steps] == [0] * first_round + [1] * 9
    assert [m["epoch_kl"] for _, _, m in diary.steps if "epoch_kl" in m][:2] == [0.0, pytest.approx(0.24)]
    assert diary.events == ["early_stop"] * (first_round == 6)
    assert learner.version == 2 and end == Position(round=2, step=first_round + 9)
    for position in diary.saved:
        again, notes = Drifting(KLS[position.step :]), Diary()
        assert train(again, Sampled([10, 10]), chosen, notes, seed=0, start=position) == end
        assert notes.steps == diary.steps[position.step :]


def test_without_a_target_every_epoch_is_trained():
    diary = Diary()
    train(Drifting([9.0] * 9), Sampled([10]), settings(epochs=3), diary, seed=0)
    assert len(diary.steps) == 9 and "epoch_kl" not in diary.steps[-1][2]


def test_freed_memory_goes_back_around_sampling_and_at_the_end_and_above_another_bound_after_steps(monkeypatch):
    """Two rounds of two steps: twice before each and once at the end, and after each step above the bound for steps."""
    asked = []
    monkeypatch.setattr(loop, "return_freed_memory", lambda above: asked.append((above, len(learner.batches()))))
    learner, settings = Notes(), StageSettings(rounds=2, batch_size=4)
    train(learner, Fixed([8]), settings, seed=0, most_held=5, most_in_training=7)
    assert len(learner.batches()) == 4
    assert asked == [(5, 0), (5, 0), (7, 1), (7, 2), (5, 2), (5, 2), (7, 3), (7, 4), (5, 4)]
