"""The reference policy: cached or measured live the same gradient, at the stage's or the round's start, and a file that
answers for what it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lydian.data.forest import Item, sequences_of
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.errors import LydianError, RunError
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.policy import Policy
from lydian.models.weights import tensors_digest
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.collect import Corpus, Rollouts
from lydian.training.learner import Learner, required_names
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.reference import with_reference_logprobs
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.training.step_facts import mismatched
from lydian.training.terms import KLInLoss, KLInReward
from lydian.verifiers import make_verifier
from tests.training.toys import Letters, engine, llama, pair, problem, sequence

PAIRS = [pair(k, question, "ab", "cde") for k, question in enumerate("fghi")]
ANCHORED = [
    name
    for name, row in ALGORITHMS.items()
    if row.data == "preferences" and row.objective is not None and "reference_logprobs" in required_names(row.objective)
]


def settings_of(algorithm: Algorithm, **changes) -> StageSettings:
    optimiser = OptimiserSettings(learning_rate=1e-2)
    return StageSettings(normaliser=algorithm.defaults["normaliser"], optimiser=optimiser, **changes)


def learner(name: str = "dpo", *, model: torch.nn.Module | None = None, **changes) -> Learner:
    algorithm = ALGORITHMS[name]
    return make_learner(Policy(model or llama()), algorithm, settings_of(algorithm, **changes))


def gradient_away_from_the_reference(trainer: Learner) -> dict[str, torch.Tensor]:
    """Of three pairs, after a step on all four: the policy is no longer the reference, and batches are packed anew."""
    items: list[Item] = trainer.with_fixed_policies(PAIRS, num_steps=2)
    trainer.accumulate(items)
    trainer.step(0.5)
    trainer.accumulate(items[1:])
    return {name: p.grad for name, p in trainer.policy.trainable().items() if p.grad is not None}


class Counter:
    """How often a policy's hidden states are computed."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num, whole = 0, policy.states

        def counted(forest):
            self.num += 1
            return whole(forest)

        monkeypatch.setattr(policy, "states", counted)


# ── Cached against live ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ANCHORED)
def test_the_gradient_is_that_of_live_reference_logprobs(name: str):
    """Of every row with a reference, also those that measure facts of a whole step: KTO's KL is of mismatched replies,
    which no cache holds. Numbers differ by packing alone."""
    live = gradient_away_from_the_reference(learner(name))
    cached = gradient_away_from_the_reference(learner(name, reference_logprobs="cached"))
    assert live.keys() == cached.keys() and any(g.abs().max() > 1e-4 for g in live.values())
    for parameter, gradient in live.items():
        assert torch.allclose(cached[parameter], gradient, rtol=0, atol=1e-6), parameter


def log_ratios(model: torch.nn.Module, sequences: list[Sequence]) -> torch.Tensor:
    """Σ log π − log π_reference of each, by transformers alone; the reference is the first model."""
    sums = []
    for each in (model, llama()):
        with torch.no_grad():
            logprobs = [each(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1) for s in sequences]
        picked = [
            (row.gather(1, torch.tensor(s.tokens[1:])[:, None])[:, 0] * torch.tensor(s.trained[1:])).sum()
            for row, s in zip(logprobs, sequences, strict=True)
        ]
        sums.append(torch.stack(picked))
    return sums[0] - sums[1]


@pytest.mark.parametrize("how", ["live", "cached"])
def test_ktos_kl_is_measured_on_mismatched_replies_against_the_reference(how: str):
    """The loss after a step, from the formula: mean of 1 − σ(± β (Δ − z)), z = mean Δ of each prompt with the reply to
    another; z is far from 0, and the cache holds no such reply."""
    replies = {"f": ("ab", 1.0), "g": ("cde", 1.0), "h": ("kl", 1.0), "i": ("m", 0.0)}
    items = [sequence(q, text, facts={"is_desirable": wanted}) for q, (text, wanted) in replies.items()]
    trainer = learner("kto", reference_logprobs=how)
    fixed = trainer.with_fixed_policies(items, num_steps=2)
    trainer.accumulate(fixed)
    trainer.step(0.5)
    loss = trainer.accumulate(fixed)["loss"]
    ratio, z = (log_ratios(trainer.policy.model, s) for s in (items, mismatched(items)))
    sign = torch.tensor([1.0, 1.0, 1.0, -1.0])
    assert z.mean() > 0.1 and (z - ratio).abs().max() > 0.01
    assert loss == pytest.approx((-sign * 0.1 * (ratio - z.mean())).sigmoid().mean().item(), abs=1e-6)


def test_a_kl_to_a_cached_reference_is_that_to_a_live_one():
    """Supervised fine-tuning with a KL in the loss: the penalty reads the stream."""
    items = [sequence(letter, "abc") for letter in "fghi"]

    def gradients(how: str) -> list[torch.Tensor]:
        settings = StageSettings(
            kl=KLInLoss(coef=0.5), reference_logprobs=how, optimiser=OptimiserSettings(learning_rate=1e-2)
        )
        trainer = make_learner(Policy(llama()), ALGORITHMS["sft"], settings)
        fixed = trainer.with_fixed_policies(items, num_steps=2)
        trainer.accumulate(fixed)
        trainer.step(0.5)
        statistics = trainer.accumulate(fixed)
        assert statistics["kl_reference"] > 1e-3
        return [p.grad for p in trainer.policy.trainable().values()]

    for ours, theirs in zip(gradients("cached"), gradients("live"), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("how", "num_passes"), [("live", 2), ("cached", 1)])
def test_a_step_of_dpo_makes_one_pass_less(how: str, num_passes: int, monkeypatch: pytest.MonkeyPatch):
    """One batch a step: the policy's pass, and the reference's unless it is cached."""
    trainer = learner(reference_logprobs=how)
    items = trainer.with_fixed_policies(PAIRS, num_steps=2)
    passes = Counter(trainer.policy, monkeypatch)
    trainer.accumulate(items)
    assert passes.num == num_passes


def test_a_learner_without_a_reference_caches_nothing():
    trainer = learner("simpo", reference_logprobs="cached")
    assert trainer.with_fixed_policies(PAIRS, num_steps=2) == PAIRS


# ── Fresh adapters ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_fresh_adapters_are_switched_off_for_the_reference(monkeypatch):
    """After a step their matrices are no longer idle, but the reference's are: its logprobs, to the last bit those with
    B = 0 put in, are computed without them; after a reset the reference is what was trained, and needs them."""
    torch.manual_seed(0)
    trainer = learner(model=add_adapter(llama(), AdapterSettings(rank=2, alpha=4.0)))
    trainer.accumulate(PAIRS)
    assert trainer.step(0.5)["gradient_norm"] > 0
    calls: list[str] = []
    for name, module in trainer.policy.model.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))

    def of_reference() -> list[float]:
        known = trainer.with_reference_logprobs(PAIRS)
        return [value for s in sequences_of(known) for value in s.streams["reference_logprobs"]]

    switched_off = of_reference()
    assert not calls
    with monkeypatch.context() as patch:
        patch.setattr("lydian.training.learner.is_idle", lambda model, values: False)
        assert of_reference() == switched_off and calls
    trainer.reset_reference()
    calls.clear()
    assert of_reference() != switched_off and calls
    trainer.accumulate(PAIRS)
    assert trainer.step(0.5)["gradient_norm"] > 0, "adapters train on after they were switched off"


# ── On disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def on_disk(path: Path, *, trainer: Learner | None = None, items: list | None = None, template: str = "letters:1"):
    trainer = trainer or learner(reference_logprobs="cached")
    settings = settings_of(ALGORITHMS["dpo"], reference_logprobs="cached")
    return with_reference_logprobs(PAIRS if items is None else items, trainer, settings, path=path, template=template)


def test_the_file_gives_back_what_was_measured_without_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Bitwise: a resumed run reads what the first one measured. The round's start finds the streams and measures
    nothing."""
    path = tmp_path / "reference" / "dpo.safetensors"
    first = on_disk(path)
    trainer = learner(reference_logprobs="cached")
    passes = Counter(trainer.policy, monkeypatch)
    again = on_disk(path, trainer=trainer)
    assert again == first
    assert trainer.with_fixed_policies(again, num_steps=2) == first
    assert passes.num == 0
    assert [p.name for p in path.parent.iterdir()] == ["dpo.safetensors"]
    (chosen, *_) = sequences_of(first)
    assert chosen.streams["reference_logprobs"][0] == 0.0  # the prompt
    assert all(value < 0 for value in chosen.streams["reference_logprobs"][1:])


def test_the_logprobs_are_the_models_own(tmp_path: Path):
    """Against transformers' logits, one sequence at a time."""
    for s in sequences_of(on_disk(tmp_path / "dpo.safetensors")):
        with torch.no_grad():
            logprobs = llama()(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None]).squeeze(1)
        assert torch.allclose(torch.tensor(s.streams["reference_logprobs"][1:]), expected, atol=1e-5)


def frozen_first() -> torch.nn.Module:
    model = llama()
    next(model.parameters()).requires_grad_(False)
    return model


def test_another_reference_template_or_corpus_is_refused_by_name(tmp_path: Path):
    """A reference of other weights, among them one that differs in a frozen weight only, as under an adapter."""
    path = tmp_path / "dpo.safetensors"
    on_disk(path)
    others = {
        "reference": {"trainer": learner(model=llama(seed=1), reference_logprobs="cached")},
        "template": {"template": "letters:2"},
        "corpus": {"items": PAIRS[:3]},
    }
    for name, changed in others.items():
        with pytest.raises(RunError, match=f"another {name}") as caught:
            on_disk(path, **changed)
        assert str(path) in str(caught.value)
    warmer = [replace(p, chosen=replace(p.chosen, temperature=0.5)) for p in PAIRS]
    with pytest.raises(RunError, match="another corpus"):
        on_disk(path, items=warmer)


def test_frozen_weights_belong_to_the_reference(tmp_path: Path):
    path = tmp_path / "dpo.safetensors"
    on_disk(path, trainer=learner(model=frozen_first(), reference_logprobs="cached"))
    changed = frozen_first()
    with torch.no_grad():
        next(changed.parameters()).mul_(1.01)
    with pytest.raises(RunError, match="another reference"):
        on_disk(path, trainer=learner(model=changed, reference_logprobs="cached"))


def test_a_reference_that_has_moved_on_in_training_is_still_the_stages_first(tmp_path: Path):
    """After steps, and after a resume: the digest is of the reference, not of the weights in memory."""
    path = tmp_path / "dpo.safetensors"
    trainer = learner(reference_logprobs="cached")
    first = on_disk(path, trainer=trainer)
    trainer.accumulate(first)
    trainer.step(0.5)
    assert on_disk(path, trainer=trainer) == first
    resumed = learner(model=llama(seed=1), reference_logprobs="cached")
    resumed.load_state(trainer.state())
    assert on_disk(path, trainer=resumed) == first


def test_an_unreadable_file_is_refused(tmp_path: Path):
    path = tmp_path / "dpo.safetensors"
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(RunError, match="Delete the file"):
        on_disk(path)


@pytest.mark.parametrize("changed", [{"reference_logprobs": "live"}, {"reference": "round"}])
def test_nothing_is_written_where_nothing_stays(changed: dict, tmp_path: Path):
    settings = settings_of(ALGORITHMS["dpo"], **{"reference_logprobs": "cached"} | changed)
    path = tmp_path / "dpo.safetensors"
    items = with_reference_logprobs(PAIRS, learner(), settings, path=path, template="letters:1")
    assert items == PAIRS and not path.exists()
    assert with_reference_logprobs(PAIRS, learner("simpo"), settings, path=path, template="letters:1") == PAIRS


# ── Start or round ──────────────────────────────────────────────────────────────────────────────────────────────────


class Publications:
    """A corpus that takes note of the weights that are published, by their digests."""

    def __init__(self, items: list[Item]) -> None:
        self.corpus, self.digests = Corpus(items), []

    def load(self, weights) -> None:
        self.digests.append(weights.digest)

    def collect(self, round, progress=None):
        return self.corpus.collect(round)

    def assign(self, items):
        return list(items)


def reference_after(rounds: int, **changes) -> tuple[str, list[str], str]:
    """Digests of the reference, of each round's last weights, and of the first weights."""
    trainer = learner(rounds=rounds, epochs=2, **changes)
    first = tensors_digest(trainer.policy.trainable())
    source = Publications(list(PAIRS))
    train(trainer, source, settings_of(ALGORITHMS["dpo"], rounds=rounds, epochs=2, **changes), Quiet(), seed=0)
    assert trainer.reference is not None
    return tensors_digest(trainer.reference), source.digests, first


def test_a_fixed_reference_is_the_stages_first_weights():
    reference, published, first = reference_after(3)
    assert reference == first != published[0]


@pytest.mark.parametrize("how", ["live", "cached"])
def test_a_reference_of_the_round_is_what_the_round_before_published(how: str):
    reference, published, first = reference_after(3, reference="round", reference_logprobs=how)
    assert len(published) == 3
    assert reference == published[1] != first


def test_each_round_caches_anew_where_the_reference_moves():
    """Two rounds of two steps, live and cached: the same weights but for packing."""
    ends = []
    for how in ("live", "cached"):
        settings = settings_of(
            ALGORITHMS["dpo"], rounds=2, epochs=2, batch_size=2, reference="round", reference_logprobs=how
        )
        trainer = make_learner(Policy(llama()), ALGORITHMS["dpo"], settings)
        train(trainer, Corpus(list(PAIRS)), settings, Quiet(), seed=0)
        ends.append({name: p.detach() for name, p in trainer.policy.trainable().items()})
    for name, end in ends[0].items():
        assert torch.allclose(ends[1][name], end, atol=2e-4), name  # Adam's first steps magnify what packing changes


def test_a_round_that_samples_takes_the_policy_it_sampled_with():
    """GRPO with a KL in the loss: at the first step of every round the reference is the policy, so the KL is 0."""
    settings = StageSettings(
        rounds=3,
        epochs=2,
        kl=KLInLoss(coef=0.1),
        reference="round",
        normaliser="sequence_mean",
        optimiser=OptimiserSettings(learning_rate=1e-2),
    )
    row = ALGORITHMS["grpo"]
    source = Rollouts(
        engine=engine(),
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-f]"),
        problems=[problem(letter) for letter in "fghi"],
        sampling=Sampling(max_tokens=4),
        num_samples=8,
        problems_per_round=0,
        credit=make_credit(row, settings, max_tokens=4),
        seed=0,
    )
    journal = Quiet()
    train(make_learner(Policy(llama()), row, settings, max_tokens=4), source, settings, journal, seed=0)
    first, second = ([m["kl_reference"] for m in journal.metrics[k::2]] for k in (0, 1))
    assert first == pytest.approx([0.0] * 3, abs=1e-6)
    assert all(kl > 1e-4 for kl in second)


def test_a_kl_in_the_reward_to_the_rounds_own_policy_is_refused():
    with pytest.raises(LydianError, match="reference"):
        StageSettings(reference="round", kl=KLInReward(place="reward", coef=0.1))


# ── Restart ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def end_of(rounds: int, *, restart: bool) -> str:
    """Weights after rounds of one step on the whole corpus, in its own order."""
    schedule = OptimiserSettings(learning_rate=1e-2, schedule="cosine", warmup_share=0.1)
    settings = StageSettings(rounds=rounds, restart=restart, optimiser=schedule)
    trainer = make_learner(Policy(llama()), ALGORITHMS["sft"], settings)
    train(trainer, Corpus([sequence(letter, "abc") for letter in "fghi"]), settings, Quiet(), seed=0)
    return trainer.weights().digest


def test_a_restarted_round_is_the_first_round_again():
    """Bitwise: weights, moments and learning rates begin anew, so three rounds end where one does; without the restart
    they go on."""
    assert end_of(3, restart=True) == end_of(1, restart=True) == end_of(1, restart=False)
    assert end_of(3, restart=False) != end_of(1, restart=False)
