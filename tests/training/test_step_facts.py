"""What couples a whole step, by hand: from sums of logprobs that are given, and the crossing of prompts and replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lydian.data.forest import sequences_of
from lydian.errors import RunError
from lydian.training.step_facts import mismatched, with_step_facts
from tests.training.toys import STOP, ids_of, pair, sequence

ITEMS = [pair(0, "fg", "ab", "cd"), pair(1, "h", "e", "i")]
CURRENT, REFERENCE = torch.tensor([-1.0, -4.0, -2.0, -3.0]), torch.tensor([-2.0, -2.0, -5.0, -3.5])
"""Log-ratios 1, −2 | 3, ½; margins of the policy 3 and 1, of the reference 0 and −1.5."""


def facts(name: str, items=ITEMS, *, beta: float = 0.1, last: dict[str, float] | None = None) -> list[float]:
    last = {} if last is None else last
    found = with_step_facts(items, [name], lambda _: (CURRENT, REFERENCE), beta=beta, last=last)
    return [s.facts[name] for s in sequences_of(found)]


def test_ktos_kl_is_the_mean_log_ratio_of_the_policy_against_its_reference():
    """(1 − 2 + 3 + ½)/4 = .625, the same for all; the other way round it would be negative and so 0."""
    assert facts("kl_estimate") == pytest.approx([0.625] * 4)


def test_aots_partners_have_the_same_rank():
    """The policy's larger margin (first pair) meets the reference's larger margin, 0; the second meets −1.5."""
    assert facts("partner_margin") == pytest.approx([0.0, 0.0, -1.5, -1.5])


def test_unpaired_partners_have_the_same_rank_in_the_other_class():
    """Chosen 1 < 3, rejected −2 < ½: 1 meets −2 and 3 meets ½."""
    assert facts("partner_log_ratio") == pytest.approx([-2.0, 1.0, 0.5, 3.0])


def test_bcos_shift_is_in_units_of_reward():
    """β = 2: ½ · (mean of 2 and 6, which is 4, and of −4 and 1, which is −1.5) = 1.25."""
    assert facts("reward_shift", beta=2.0) == pytest.approx([1.25] * 4)


def test_a_step_of_one_class_takes_over_bcos_last_shift():
    """Its own shift does not exist. Before any step that has both classes there is nothing to take over either."""
    last: dict[str, float] = {}
    ups = [replace(sequence(letter, "a"), facts={"is_desirable": 1.0}) for letter in "fghi"]
    with pytest.raises(RunError, match="one class"):
        facts("reward_shift", ups, last=last)
    facts("reward_shift", beta=2.0, last=last)
    assert facts("reward_shift", ups, last=last) == pytest.approx([1.25] * 4)
    assert last == {"reward_shift": pytest.approx(1.25)}


def test_prompts_are_crossed_with_replies_to_others():
    """Prompt fg (tokens 7 8) with replies to h, prompt h with replies to fg; the reply alone is trained."""
    crossed = mismatched(ITEMS)
    for index, prompt, replies in (("0", "fg", ("e", "i")), ("1", "h", ("ab", "cd"))):
        own = [s for s in crossed if s.id.startswith(index)]
        size = len(prompt)
        assert {s.tokens[:size] for s in own} == {ids_of(prompt)}
        assert {s.tokens[size:] for s in own} == {(*ids_of(reply), STOP) for reply in replies}
        assert all(s.trained == (False,) * size + (True,) * (len(s.tokens) - size) for s in own)


def test_a_step_of_one_prompt_has_nobody_to_cross_with():
    with pytest.raises(RunError, match="batch_size"):
        facts("kl_estimate", [pair(0, "fg", "ab", "cd")])


def test_sequences_without_pairs_keep_their_places():
    """Three prompts of one reply each: every reply is used once, none by its own prompt."""
    items = [sequence(letter, reply) for letter, reply in (("f", "a"), ("g", "b"), ("h", "c"))]
    crossed = mismatched(items)
    assert sorted(s.tokens[1] for s in crossed) == sorted(s.tokens[1] for s in items)
    assert all(a.tokens[0] == b.tokens[0] and a.tokens[1] != b.tokens[1] for a, b in zip(crossed, items, strict=True))
