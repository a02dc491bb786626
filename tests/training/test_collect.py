"""Collecting a round: whose turn it is, what is sampled and judged, and what is said of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.models.weights import weights_of
from lydian.objectives.advantage import group_mean
from lydian.rollout.scripted import ScriptedEngine
from lydian.training.collect import Corpus, Rollouts, derived_seed, permutation, retention
from lydian.training.credit import Imitation, PolicyGradient
from lydian.verifiers import make_verifier
from tests.training.toys import STOP, Letters, engine, group, ids_of, llama, problem, sequence


def rollouts(num_problems: int = 5, *, per_round: int = 2, seed: int = 0, **settings) -> Rollouts:
    problems = [problem(letter) for letter in "abcdefghij"[:num_problems]]
    defaults = {
        "engine": engine(),
        "template": Letters(),
        "verifier": make_verifier("pattern", pattern="[a-o]"),
        "sampling": Sampling(max_tokens=3),
        "num_samples": 2,
        "credit": PolicyGradient(advantage=group_mean),
    }
    return Rollouts(problems=problems, problems_per_round=per_round, seed=seed, **defaults | settings)


def test_every_problem_has_its_turn_before_any_repeats():
    """5 problems, 2 a round: rounds 0 to 4 are 10 places, two walks through all five. Round 2 lies on the edge."""
    source = rollouts()
    walk = [source.problems_of(round) for round in range(5)]
    places = [p.id for round in walk for p in round]
    if len(walk[2]) == 2:  # else the edge drew one problem twice, and it is sampled once
        assert sorted(places[:5]) == sorted(places[5:]) == list("abcde")
    assert max(Counter(places).values()) <= 2
    assert {p.id for round in walk[:3] for p in round} == set("abcde")


def test_the_order_is_that_of_the_seed_and_changes_between_walks():
    def orders(seed: int) -> list[list[str]]:
        source = rollouts(10, per_round=5, seed=seed)
        return [[p.id for r in (2 * epoch, 2 * epoch + 1) for p in source.problems_of(r)] for epoch in range(2)]

    assert orders(0) == orders(0)
    assert orders(0)[0] != orders(0)[1]
    assert orders(0) != orders(1)
    assert all(sorted(order) == list("abcdefghij") for order in orders(0))


@pytest.mark.parametrize("per_round", [0, 5, 12])
def test_no_problem_stands_twice_in_a_round(per_round: int):
    """All of them (0), exactly all, and more than there are."""
    assert sorted(p.id for p in rollouts(per_round=per_round).problems_of(1)) == list("abcde")


def test_scripted_round_by_hand():
    """Two problems, replies scripted: a → b (right: it matches), z (wrong); c → z, z (both wrong).

    Rewards 1 0 | 0 0: accuracy 1/4; with the group mean advantages ½ −½ | 0 0; all four are sequences.
    """
    right, wrong = (*ids_of("b"), STOP), (*ids_of("z"), STOP)
    script = ScriptedEngine({"a": [right, wrong], "c": [wrong, wrong]}, stop_tokens=Letters.stop_tokens)
    source = replace(rollouts(engine=script, per_round=0), problems=[problem("a"), problem("c")])
    collected = source.collect(0)
    found = {s.id: s.streams["advantage"][-1] for s in source.assign(collected.items) if isinstance(s, Sequence)}
    assert found == {"a/0": 0.5, "a/1": -0.5, "c/0": 0.0, "c/1": 0.0}
    assert collected.metrics["accuracy"] == 0.25
    assert collected.metrics["no_signal_groups"] == 0.5
    assert collected.metrics["kept"] == 1.0
    assert {g.problem.id for g in collected.groups} == {"a", "c"}


def test_a_round_is_a_pure_function_of_round_and_weights():
    """Another engine with the same weights, in whatever state, collects the same; another round or weights do not."""
    first, second = rollouts(2), rollouts(2)
    second.collect(7)
    once = first.collect(1).items
    assert second.collect(1).items == once
    assert {s.tokens for s in first.collect(2).items} != {s.tokens for s in once}
    second.load(weights_of(llama(seed=1), version=9))
    other = second.collect(1).items
    assert {s.tokens for s in other} != {s.tokens for s in once}
    assert {version for s in other for _, version in s.versions} == {9}


def test_retention_counts_kept_sequences_a_problem_by_level():
    """Level 1: 2 and 0 kept of two problems, mean 1; level 3: 1 of one problem. Without a level none is shown."""
    groups = [
        group("a", ("x", 1.0), ("y", 1.0), level=1),
        group("b", ("x", 0.0), ("y", 0.0), level=1),
        group("c", ("x", 1.0), ("y", 0.0), level=3),
        group("d", ("x", 1.0), ("y", 0.0)),
    ]
    kept = Imitation(keep_per_problem=4).items(groups, {})
    assert retention(groups, kept) == {"retention_level_1": 1.0, "retention_level_3": 1.0}
    capped = Imitation(keep_per_problem=1).items(groups, {})
    assert retention(groups, capped) == {"retention_level_1": 0.5, "retention_level_3": 1.0}


def test_a_corpus_gives_all_its_items_every_round():
    items = [sequence("a", "b"), sequence("b", "c")]
    corpus = Corpus(items)
    assert corpus.collect(0).items == corpus.collect(3).items == items
    assert corpus.collect(0).groups == []


def test_derived_seeds_and_permutations_are_functions_of_all_their_parts():
    seeds = {derived_seed(*parts) for parts in ((0, "sft"), (0, "grpo"), (1, "sft"), ("0", "sft"), (0, "sft", 0))}
    assert len(seeds) == 5 and all(0 <= s < 2**63 for s in seeds)
    assert sorted(permutation(9, 1, 2)) == list(range(9))
    assert list(permutation(9, 1, 2)) == list(permutation(9, 1, 2)) != list(permutation(9, 1, 3))
