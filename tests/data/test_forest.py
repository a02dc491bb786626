"""Planting: worked example, sharing, packing, normalisers, and the laws that every layout obeys."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from lydian.data.forest import Layout, plant, sequences_of, site_weights
from lydian.data.sequence import Pair, Sequence
from lydian.errors import InputError

LAYOUTS: tuple[Layout, ...] = ("shared", "packed", "single")
STARTS: tuple[tuple[int, ...], ...] = ((), (7, 8, 9, 7))


def seq(id_: str, prompt: tuple[int, ...], answer: tuple[int, ...], group: str = "g", **kwargs) -> Sequence:
    trained = (False,) * len(prompt) + (True,) * len(answer)
    return Sequence(id=id_, group=group, tokens=prompt + answer, trained=trained, **kwargs)


def random_step(seed: int, num_groups: int = 6, start: tuple[int, ...] = ()) -> list[Sequence]:
    rng = random.Random(seed)
    sequences = []
    for g in range(num_groups):
        prompt = start + tuple(rng.randrange(2, 6) for _ in range(rng.randrange(1, 6)))
        for k in range(rng.randrange(1, 5)):
            answer = tuple(rng.randrange(2, 5) for _ in range(rng.randrange(1, 7)))
            streams = {"advantage": tuple(rng.random() for _ in prompt + answer)}
            sequences.append(seq(f"{g}/{k}", prompt, answer, group=str(g), streams=streams))
    return sequences


def test_worked_example():
    """The module's example: answers (9, 2) and (8,) to prompt (5, 6); sorted, (8,) is visited first.

    Depth first: 5 6 8 | 9 2. Node 6 (index 1) predicts both first answer tokens; reach of the shared prompt is 5, of
    the leaf 8 it is 3, of 9 and 2 it is 5."""
    items = [seq("a", (5, 6), (9, 2)), seq("b", (5, 6), (8,))]
    (forest,) = plant(items, site_weights(items, "token_mean"))
    assert forest.tokens.tolist() == [[5, 6, 8, 9, 2]]
    assert forest.positions.tolist() == [[0, 1, 2, 2, 3]]
    assert forest.reach.tolist() == [[5, 5, 3, 5, 5]]
    pairs = sorted(zip(forest.sites.source.tolist(), forest.sites.target.tolist(), strict=True))
    assert pairs == [(1, 8), (1, 9), (3, 2)]


@pytest.mark.parametrize("start", STARTS, ids=["", "common start"])
def test_visibility_is_ancestry(start: tuple[int, ...]):
    """j <= i < reach[j] holds exactly when j is i or an ancestor of i, found here by walking sequences."""
    items = random_step(3, start=start)
    for forest in plant(items, site_weights(items, "token_mean"), row_tokens=24):
        length = forest.tokens.shape[1]
        index = torch.arange(length)
        sees = (index[None] <= index[:, None]) & (index[:, None] < forest.reach[:, None, :])
        for row in range(forest.tokens.shape[0]):
            for i in range(length):
                seen = [j for j in range(length) if sees[row, i, j]]
                depths = [forest.positions[row, j].item() for j in seen]
                is_padding = forest.positions[row, i] == 0 and forest.reach[row, i] == i + 1
                assert depths == ([0] if is_padding else list(range(forest.positions[row, i] + 1)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", STARTS, ids=["", "common start"])
def test_every_trained_token_is_one_site_and_its_past_is_its_sequence(
    layout: Layout, seed: int, start: tuple[int, ...]
):
    """Reading back the visible tokens of each site's source gives exactly the sequence's tokens before the target."""
    items = random_step(seed, start=start)
    by_id = {s.id: s for s in items}
    found: list[tuple[str, int, int]] = []
    for forest in plant(items, site_weights(items, "token_mean"), layout=layout, row_tokens=16, batch_tokens=64):
        length = forest.tokens.shape[1]
        for source, target, index, advantage in zip(
            forest.sites.source.tolist(),
            forest.sites.target.tolist(),
            forest.sites.sequence.tolist(),
            forest.sites.streams["advantage"].tolist(),
            strict=True,
        ):
            row, i = divmod(source, length)
            past = tuple(
                forest.tokens[row, j].item() for j in range(i + 1) if i < forest.reach[row, j] or layout == "single"
            )
            sequence = by_id[forest.sequence_ids[index]]
            place = len(past)
            assert sequence.tokens[:place] == past and sequence.tokens[place] == target
            assert sequence.streams["advantage"][place] == pytest.approx(advantage)
            found.append((sequence.id, place, target))
    expected = [(s.id, t, s.tokens[t]) for s in items for t in range(len(s.tokens)) if s.trained[t]]
    assert sorted(found) == sorted(expected)


def test_sharing_computes_common_prefixes_once():
    """Prompt of 10, four answers of 3 with distinct first tokens: 10 + 4·3 tokens shared, 4·13 packed."""
    prompt = tuple(range(10, 20))
    items = [seq(str(k), prompt, (k + 2, 3, 4)) for k in range(4)]
    weights = site_weights(items, "token_mean")
    assert sum(f.num_tokens for f in plant(items, weights, layout="shared")) == 22
    assert sum(f.num_tokens for f in plant(items, weights, layout="packed", row_tokens=52)) == 52


def test_a_row_may_hold_what_a_pass_may():
    """Prompt of 10, four answers of 700: 2,810 tokens, computed once where a pass holds as many."""
    items = [seq(str(k), tuple(range(10, 20)), (k, *range(699))) for k in range(4)]
    weights = site_weights(items, "token_mean")
    assert [f.tokens.shape for f in plant(items, weights, batch_tokens=2810)] == [(1, 2810)]
    assert [f.tokens.shape for f in plant(items, weights, batch_tokens=2809)] == [(1, 1410), (1, 1410)]


def test_what_all_sequences_begin_with_stands_once_a_row():
    """Two groups, of (5, 6) with 8 9 or 7 4 after it and of (5, 6) with 3: by hand, the larger first. 2 of 3⅔ tokens
    are common; a row of 7 holds both, without sharing 6 + 3."""
    items = [seq("a", (5, 6), (7, 4), "g"), seq("b", (5, 6), (8, 9), "g"), seq("c", (5, 6), (3,), "h")]
    weights = site_weights(items, "token_mean")
    (forest,) = plant(items, weights, row_tokens=7)
    assert forest.tokens.tolist() == [[5, 6, 7, 4, 8, 9, 3]]
    assert forest.positions.tolist() == [[0, 1, 2, 3, 2, 3, 2]]
    assert forest.reach.tolist() == [[7, 7, 4, 4, 6, 6, 7]]
    pairs = sorted(zip(forest.sites.source.tolist(), forest.sites.target.tolist(), strict=True))
    assert pairs == [(1, 3), (1, 7), (1, 8), (2, 4), (4, 9)]
    (apart,) = plant(items, weights, row_tokens=6)
    assert apart.tokens.tolist() == [[5, 6, 7, 4, 8, 9], [5, 6, 3, 0, 0, 0]]


@pytest.mark.parametrize(("num_own", "num_tokens"), [(30, 2 + 2 * 30), (31, 2 * (2 + 31))])
def test_a_common_start_is_shared_from_a_sixteenth_of_the_tokens(num_own: int, num_tokens: int):
    """2 of 32 and of 33 tokens."""
    items = [seq(str(k), (5, 6), (7 + k,) * num_own, group=str(k)) for k in range(2)]
    (forest,) = plant(items, site_weights(items, "token_mean"))
    assert forest.num_tokens == num_tokens


def test_nothing_gives_no_forest():
    assert plant([], {}) == []


def test_equal_and_nested_sequences():
    """Two equal sequences share all nodes but keep their sites; a prefix of another sequence is a node on its path."""
    items = [seq("a", (5,), (6, 7)), seq("b", (5,), (6, 7)), seq("c", (5,), (6,))]
    (forest,) = plant(items, site_weights(items, "sequence_mean"))
    assert forest.tokens.tolist() == [[5, 6, 7]]
    assert len(forest.sites.target) == 5
    # Each sequence weighs 1/3: a and b 1/6 a token, c 1/3 on its one token.
    by_sequence = {forest.sequence_ids[k]: forest.sites.weight[forest.sites.sequence == k].tolist() for k in range(3)}
    assert by_sequence == {
        "a": pytest.approx([1 / 6] * 2),
        "b": pytest.approx([1 / 6] * 2),
        "c": pytest.approx([1 / 3]),
    }


def test_normalisers_by_hand():
    """Lengths 1 and 3. token mean 1/4; sequence mean 1/(2·1) and 1/(2·3); constant 10: 1/(2·10); as a pair: 1/4."""
    a, b = seq("a", (5,), (6,)), seq("b", (5,), (7, 8, 9))
    assert site_weights([a, b], "token_mean") == {"a": 1 / 4, "b": 1 / 4}
    assert site_weights([a, b], "sequence_mean") == {"a": 1 / 2, "b": 1 / 6}
    assert site_weights([a, b], "constant", constant=10) == {"a": 1 / 20, "b": 1 / 20}
    assert site_weights([Pair(chosen=a, rejected=b)], "pair_mean") == {"a": 1 / 4, "b": 1 / 4}


def test_bad_normalisers_are_refused():
    a = seq("a", (5,), (6,))
    with pytest.raises(InputError, match="pairs only"):
        site_weights([a], "pair_mean")
    with pytest.raises(InputError, match="positive number"):
        site_weights([a], "constant")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairs_stay_together(layout: Layout):
    """Every forest that holds one sequence of a pair holds the other, however small the budgets."""
    items = [
        Pair(
            chosen=seq(f"{k}/c", (5, 6), (7,) * (k + 1), group=str(k)),
            rejected=seq(f"{k}/r", (5, 6), (8,) * (2 * k + 1), group=str(k)),
        )
        for k in range(6)
    ]
    forests = plant(items, site_weights(items, "pair_mean"), layout=layout, row_tokens=8, batch_tokens=8)
    assert len(forests) > 1
    for forest in forests:
        names = {name.split("/")[0] for name in forest.sequence_ids}
        assert sorted(forest.sequence_ids) == sorted(f"{n}/{side}" for n in names for side in "cr")


def test_large_group_is_split_and_budgets_hold():
    """Eight answers of 10 to a prompt of 4 do not fit a row of 32: several trees, each within the row."""
    items = [seq(str(k), (2, 3, 4, 5), (k + 6,) * 10) for k in range(8)]
    forests = plant(items, site_weights(items, "token_mean"), row_tokens=32, batch_tokens=64)
    assert all(f.tokens.shape[1] <= 32 and f.num_tokens <= 64 for f in forests)
    assert sum(len(f.sequence_ids) for f in forests) == 8


def test_rows_are_filled():
    """First fit decreasing wastes little: 40 random trees in rows of 64 leave less than a tenth empty."""
    rng = random.Random(0)
    items = [
        seq(str(k), (2, 3), tuple(rng.randrange(4, 90) for _ in range(rng.randrange(3, 30))), str(k)) for k in range(40)
    ]
    forests = plant(items, site_weights(items, "token_mean"), row_tokens=64, batch_tokens=256)
    assert sum(len(s.tokens) for s in items) / sum(f.num_tokens for f in forests) > 0.9


def test_streams_and_ids_must_agree():
    with pytest.raises(InputError, match="on some sequences only"):
        items = [seq("a", (5,), (6,), streams={"advantage": (0.0, 1.0)}), seq("b", (5,), (7,))]
        plant(items, site_weights(items, "token_mean"))
    with pytest.raises(InputError, match="unique ids"):
        items = [seq("a", (5,), (6,)), seq("a", (5,), (7,))]
        plant(items, site_weights(items, "token_mean"))


def test_pair_order_is_chosen_then_rejected():
    pair = Pair(chosen=seq("c", (5,), (6,)), rejected=seq("r", (5,), (7,)))
    assert [s.id for s in sequences_of([pair, seq("x", (5,), (8,))])] == ["c", "r", "x"]
    assert list(itertools.chain(s.id for s in sequences_of([pair]))) == ["c", "r"]
