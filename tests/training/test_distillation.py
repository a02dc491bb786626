"""Distillation in the learner: exact gradients in bounded memory, what the rows are trained on, exact resume."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import kl_div
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.errors import RecipeError, RunError
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.objectives.distillation import forward_kl, jensen_shannon, reverse_kl, sampled_reverse_kl
from lydian.objectives.loss import Loss
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Corpus, Rollouts, Source
from lydian.training.credit_teacher import Taught
from lydian.training.given import WithGiven
from lydian.training.learner import Batching, Learner
from lydian.training.loop import Position, Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.site_values import Logits, per_site_loss
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers import make_verifier
from tests.training.toys import STOP, VOCABULARY, Letters, engine, group, llama, problem, sequence

NUM_SITES, NUM_TOKENS, WIDTH = 37, 50, 8

LOSSES: dict[str, Callable[..., Loss]] = {
    "forward": forward_kl,
    "reverse": reverse_kl,
    "jensen_shannon": functools.partial(jensen_shannon, beta=0.3),
    "top 5": functools.partial(forward_kl, top_k=5),
    "softened": functools.partial(reverse_kl, temperature=2.0),
}


def products(seed: int = 0) -> tuple[Logits, Logits]:
    """Student and teacher states and output matrices; the student's take gradients, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, is_trained: bool) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(is_trained)

    return tuple(  # type: ignore[return-value]
        Logits(normal(NUM_SITES, WIDTH, is_trained=t), normal(NUM_TOKENS, WIDTH, is_trained=t), torch.float64)
        for t in (True, False)
    )


def weighted(loss: Loss) -> torch.Tensor:
    return (loss.loss * torch.linspace(0.1, 1.0, NUM_SITES)).sum()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("num_rows", [1, 10, 100])
def test_chunks_give_the_whole_loss_and_gradient(name: str, num_rows: int):
    """Against the objective of both whole matrices: loss, statistics, and the gradients of states and outputs."""
    results = []
    for is_chunked in (True, False):
        student, teacher = products()
        if is_chunked:
            loss = per_site_loss(LOSSES[name], [student, teacher], chunk_elements=num_rows * NUM_TOKENS)
        else:
            loss = LOSSES[name](*((side.hidden @ side.output.T).float() for side in (student, teacher)))
        weighted(loss).backward()
        results.append((loss.loss, *loss.statistics.values(), student.hidden.grad, student.output.grad))
    for chunked, whole in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-6)


class Largest(TorchDispatchMode):
    """Notes the largest tensor of all that any operation gives."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.num_elements = max(self.num_elements, *sizes, 0)
        return result


@pytest.mark.parametrize("name", LOSSES)
def test_no_whole_matrix_is_ever_made(name: str):
    """Neither forward nor backward makes a tensor above one chunk of 10 sites, but for the output matrix (50 · 8)."""
    student, teacher = products()
    with Largest() as largest:
        weighted(per_site_loss(LOSSES[name], [student, teacher], chunk_elements=10 * NUM_TOKENS)).backward()
    assert largest.num_elements <= 10 * (NUM_TOKENS + 1) < NUM_SITES * NUM_TOKENS


def test_nothing_of_a_chunk_outlives_it():
    """What the backward pass keeps of the forward pass is smaller than one chunk of logits."""
    student, teacher = products()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        weighted(per_site_loss(forward_kl, [student, teacher], chunk_elements=10 * NUM_TOKENS))
    assert sum(kept) < 10 * NUM_TOKENS


# ── In the learner ──────────────────────────────────────────────────────────────────────────────────────────────────


def corpus() -> list[Sequence]:
    return [sequence(question, reply) for question in "fghi" for reply in ("abc", "ab", "kzka")]


def teacher(seed: int = 1, num_tokens: int = VOCABULARY, scale: float = 8.0) -> Teacher:
    """Weights so large that its predictions are far from uniform."""
    model = llama(seed).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.mul_(scale)
    return Teacher(policy=Policy(model), num_tokens=num_tokens)


def learner(objective: Callable[..., Loss], taught_by: Teacher | None, **settings) -> Learner:
    return Learner(
        Policy(llama()),
        objective=objective,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=1e-2),
        teacher=taught_by,
        **settings,
    )


def by_hand(made: Teacher, items: list[Sequence], num_tokens: int) -> tuple[float, list[torch.Tensor]]:
    """Mean forward KL over trained tokens by transformers and torch alone, a sequence at a time, and its gradient."""
    model, total, num = llama(), torch.zeros(()), sum(s.num_trained for s in items)
    for s in items:
        logits = [m(torch.tensor([s.tokens])).logits[0, :-1, :num_tokens] for m in (model, made.policy.model)]
        used = torch.tensor(s.trained[1:])
        ours, theirs = (x[used].log_softmax(-1) for x in logits)
        total = total + kl_div(ours, theirs.detach(), reduction="sum", log_target=True)
    (total / num).backward()
    return (total / num).item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("layout", ["shared", "single"])
@pytest.mark.parametrize("batching", [Batching(), Batching(batch_tokens=1)])
def test_the_learners_gradient_is_the_kl_by_hand(layout: str, batching: Batching):
    """Whatever the split, and whatever layout the teacher needs."""
    made = teacher()
    made.policy.layout = layout
    trainer = learner(forward_kl, made, batching=batching)
    statistics = trainer.accumulate(corpus())
    value, gradients = by_hand(made, corpus(), VOCABULARY)
    assert statistics["loss"] == pytest.approx(value, rel=1e-5)
    assert statistics["kl_forward"] == pytest.approx(value, rel=1e-5) and statistics["kl_reverse"] != value
    for mine, expected in zip(trainer.policy.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(mine.grad, expected, atol=1e-6, rtol=1e-4)


def test_padding_on_either_side_is_left_out():
    """Only the first 30 of 32 ids are compared: a distribution over 30 tokens on both sides."""
    made = teacher(num_tokens=30)
    trainer = learner(forward_kl, made)
    value, gradients = by_hand(made, corpus(), 30)
    assert trainer.accumulate(corpus())["loss"] == pytest.approx(value, rel=1e-5)
    for mine, expected in zip(trainer.policy.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(mine.grad, expected, atol=1e-6, rtol=1e-4)


def test_the_sampling_temperature_softens_sampled_logprobs_and_no_logits():
    """The sampled estimate is of the distributions that were sampled from, z / 2 on both sides; a whole divergence
    has a temperature of its own."""
    warm = [Sequence(id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, temperature=2.0) for s in corpus()]
    made = teacher()
    losses = {t: learner(forward_kl, made).accumulate(items)["loss"] for t, items in ((1, corpus()), (2, warm))}
    assert losses[1] == losses[2]
    found = learner(sampled_reverse_kl, made).accumulate(warm)["kl_reverse"]
    total = 0.0
    for s in warm:
        for sign, model in ((1, llama()), (-1, made.policy.model)):
            with torch.no_grad():
                logprobs = (model(torch.tensor([s.tokens])).logits[0, :-1] / 2).log_softmax(-1)
            picked = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None]).squeeze(1)
            total += sign * picked[torch.tensor(s.trained[1:])].sum().item()
    assert found == pytest.approx(total / sum(s.num_trained for s in warm), rel=1e-4)


def test_the_teacher_is_frozen_and_needed():
    made = teacher()
    before = copy.deepcopy(made.policy.model.state_dict())
    trainer = learner(forward_kl, made)
    trainer.accumulate(corpus())
    trainer.step(0.5)
    assert all(torch.equal(before[name], value) for name, value in made.policy.model.state_dict().items())
    with pytest.raises(RunError, match="asks for teacher_logits, and no teacher"):
        learner(forward_kl, None)


# ── What is trained on ──────────────────────────────────────────────────────────────────────────────────────────────


def test_all_completions_are_trained_whatever_their_verdict():
    groups = [group("f", ("ab", 1.0), ("cd", 0.0), ("ef", None))]
    estimated = Taught(is_estimated=True).items(groups, {})
    assert [s.id for s in estimated] == ["f/0", "f/1", "f/2"]
    assert all(set(s.streams) == {"behaviour_logprobs"} for s in estimated)
    assert all(not s.streams for s in Taught(is_estimated=False).items(groups, {}))


def test_an_estimate_needs_the_full_distribution():
    greedy = [group("f", ("ab", 1.0), sampling=Sampling(top_k=3))]
    with pytest.raises(RecipeError, match="full distribution"):
        Taught(is_estimated=True).items(greedy, {})
    assert len(Taught(is_estimated=False).items(greedy, {})) == 1


def test_cut_off_completions_are_left_out_on_request():
    """A limit of 2 new tokens cuts off every reply that does not stop at once."""
    source = rollouts(Taught(is_estimated=True, train_truncated=False), verifier=None, max_tokens=2)
    collected = source.collect(0)
    finished = [m for g in collected.groups for m in g.members if m.trajectory.finish is Finish.STOP]
    assert 0 < len(collected.items) == len(finished) < 64
    assert all(item.tokens[-1] == STOP for item in collected.items)


def rollouts(credit: object, *, verifier: object = None, max_tokens: int = 4, **settings) -> Rollouts:
    return Rollouts(
        **{
            "engine": engine(),
            "template": Letters(),
            "verifier": verifier,
            "problems": [problem(letter) for letter in "fghi"],
            "sampling": Sampling(max_tokens=max_tokens),
            "num_samples": 16,
            "problems_per_round": 0,
            "credit": credit,
            "seed": 0,
        }
        | settings
    )


def test_without_a_verifier_nothing_is_judged():
    """No reward or accuracy is made up; a held-out verifier may still watch."""
    source = rollouts(Taught(is_estimated=True))
    collected = source.collect(0)
    assert len(collected.items) == 64
    assert {"reward", "accuracy", "failed", "all_wrong_groups"}.isdisjoint(collected.metrics)
    assert {"mean_tokens", "truncated", "kept"} <= set(collected.metrics)
    assert {m.verdict.reason for g in collected.groups for m in g.members} == {"not judged"}
    watched = rollouts(Taught(is_estimated=True), heldout=make_verifier("pattern", pattern="[a-f]")).collect(0)
    assert 0 < watched.metrics["heldout_accuracy"] < 1
    with pytest.raises(RecipeError, match="no verifier"):
        rollouts(Taught(is_estimated=True), most_draws=2)


def test_a_round_mixes_samples_and_texts_in_the_share_that_was_asked_for():
    """64 samples at λ = 0.8 leave 16 for texts, of which there are 12: the walk begins them anew, with ids of their
    own; over three rounds each of the 12 stands four times."""
    source = WithGiven(rollouts=rollouts(Taught(is_estimated=False)), given=corpus(), on_policy_share=0.8)
    counts = dict.fromkeys((s.tokens for s in corpus()), 0)
    for round in range(3):
        collected = source.collect(round)
        assert len(collected.items) == 80 == len({s.id for s in collected.items})
        assert collected.metrics["on_policy_share"] == 0.8
        for s in collected.items[64:]:
            counts[s.tokens] += 1
    assert set(counts.values()) == {4}


def test_shares_at_the_ends():
    own = rollouts(Taught(is_estimated=False))
    assert len(WithGiven(rollouts=own, given=[], on_policy_share=1.0).collect(0).items) == 64
    for given, share in (([], 0.5), (corpus(), 0.0)):
        with pytest.raises(RecipeError, match="on_policy_share"):
            WithGiven(rollouts=own, given=given, on_policy_share=share)
    with pytest.raises(RecipeError, match="distil_jsd"):
        StageSettings(on_policy_share=0.0)


# ── Resume ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = sorted(name for name, row in ALGORITHMS.items() if row.needs_teacher)


def test_the_rows():
    assert ROWS == ["distil", "distil_jsd", "distil_reverse", "gkd", "on_policy_distillation"]


def source_of(name: str, settings: StageSettings) -> Source:
    row = ALGORITHMS[name]
    if row.data == "conversations":
        return Corpus(list(corpus()))
    sampled = rollouts(make_credit(row, settings, max_tokens=4), num_samples=4)
    if row.mixes is None:
        return sampled
    return WithGiven(rollouts=sampled, given=corpus(), on_policy_share=settings.on_policy_share)


class Stopped(Exception):
    """The run was stopped here."""


class Stopping(Quiet):
    """Saves learner and position at every chance, and stops after a number of steps."""

    def __init__(self, trainer: Learner, stop_after: int) -> None:
        super().__init__()
        self.trainer, self.stop_after = trainer, stop_after
        self.saved: tuple[dict, Position] | None = None

    def checkpoint(self, position: Position) -> None:
        self.saved = copy.deepcopy((self.trainer.state(), position))

    def stepped(self, position, num_steps, seconds, metrics) -> None:
        super().stepped(position, num_steps, seconds, metrics)
        if position.step > self.stop_after:
            raise Stopped


@pytest.mark.parametrize("name", ROWS)
def test_a_resumed_run_ends_with_the_same_weights(name: str):
    """Three rounds of at least two steps, stopped in the middle of the second, go on bitwise from the checkpoint."""
    settings = StageSettings(
        rounds=3, batch_size=8, checkpoint_steps=1, optimiser=OptimiserSettings(learning_rate=1e-2)
    )

    def fresh() -> Learner:
        return make_learner(Policy(llama()), ALGORITHMS[name], settings, teacher=teacher())

    whole = fresh()
    source = source_of(name, settings)
    source.load(whole.weights())
    train(whole, source, settings, Quiet(), seed=0)

    first, second = fresh(), fresh()
    journal = Stopping(first, stop_after=3)
    source = source_of(name, settings)
    source.load(first.weights())
    with pytest.raises(Stopped):
        train(first, source, settings, journal, seed=0)
    state, position = journal.saved
    assert position.step == 3
    second.load_state(state)
    source = source_of(name, settings)
    source.load(second.weights())
    train(second, source, settings, Quiet(), seed=0, start=position)
    assert second.weights().digest == whole.weights().digest != fresh().weights().digest
