"""What a sequence and a pair refuse: every per-token fact has its token, and the first token is never trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lydian.data.sequence import Pair, Sequence
from lydian.errors import InputError

SEQUENCE = Sequence(
    id="a/0",
    group="a",
    tokens=(7, 8, 9, 2),
    trained=(False, False, True, True),
    streams={"advantage": (0.0, 0.0, 1.5, 1.5)},
)


def test_trained_tokens_are_counted():
    assert SEQUENCE.num_trained == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": (7,), "trained": (True,), "streams": {}}, "at least two tokens"),
        ({"trained": (False, True)}, "'trained': 2.*as long as the tokens"),
        ({"streams": {"advantage": (1.0,)}}, "'advantage': 1.*as long as the tokens"),
        ({"trained": (True, False, True, True)}, "a first token that is not trained"),
        ({"trained": (False,) * 4}, "at least one trained token"),
        ({"temperature": 0.0}, "a temperature > 0"),
        ({"streams": {"advantage": (0.0, 0.0, 1.5, float("nan"))}}, "not finite in 'advantage'"),
    ],
)
def test_a_sequence_refuses(change, message):
    with pytest.raises(InputError, match=message):
        replace(SEQUENCE, **change)


def test_streams_are_read_only_where_trained():
    """A prompt has no behaviour logprobs; what stands there does not matter."""
    streams = {"behaviour_logprobs": (float("nan"), float("nan"), -0.5, -0.1)}
    assert replace(SEQUENCE, streams=streams).num_trained == 2


def test_a_pair_has_one_group_and_two_ids():
    other = replace(SEQUENCE, id="a/1")
    assert Pair(chosen=SEQUENCE, rejected=other).rejected is other
    for wrong in (SEQUENCE, replace(other, group="b")):
        with pytest.raises(InputError, match="one group, two ids"):
            Pair(chosen=SEQUENCE, rejected=wrong)
