"""Credit: which samples are trained, with which advantage, and what is said of them. All numbers by hand."""

from __future__ import annotations

import pytest

from lydian.data.trajectory import Completion, Finish, Sampling, Turn
from lydian.errors import RecipeError
from lydian.objectives.advantage import group_mean, group_mean_std, leave_one_out, raw_reward, remax
from lydian.training.credit import Imitation, PolicyGradient, group_metrics, sequence_of
from tests.training.toys import STOP, group, ids_of, trajectory


def assigned(groups, advantage, **settings):
    """Sequences of the groups with their advantages."""
    credit = PolicyGradient(advantage=advantage, **settings)
    return credit.assign(credit.items(groups, {}))


def kept(groups, num: int):
    """What expert iteration keeps, at most `num` a problem."""
    return Imitation(keep_per_problem=num).items(groups, {})


def advantages(sequences) -> dict[str, float]:
    return {s.id: s.streams["advantage"][-1] for s in sequences}


def test_sampled_tokens_are_trained_and_the_prompt_is_not():
    """Question `ab`, reply `cd` and the stop token: tokens 2 3 | 4 5 1."""
    s = sequence_of(trajectory("ab", "cd", sample=6), is_imitated=False)
    assert s.id == "ab/6" and s.group == "ab"
    assert s.tokens == (2, 3, 4, 5, STOP)
    assert s.trained == (False, False, True, True, True)
    assert s.streams["behaviour_logprobs"] == (0.0, 0.0, -0.5, -0.5, -0.5)
    assert s.versions == ((3, 3),)


def test_two_turns_train_both_replies_and_neither_context():
    """`ab` → `c` stop, then the context `d` → `e` stop, drawn by version 4: the second context lies between trained
    tokens and is not trained; versions follow each other over the trained tokens."""
    first = trajectory("ab", "c", sampling=Sampling(temperature=0.7))
    completion = Completion(
        tokens=(*ids_of("e"), STOP),
        logprobs=(-0.1, -0.2),
        sampling=Sampling(temperature=0.7),
        versions=((1, 3), (1, 4)),
        finish=Finish.STOP,
    )
    s = sequence_of(first.extend(Turn(context=ids_of("d"), completion=completion)), is_imitated=False)
    assert s.tokens == (2, 3, 4, STOP, 5, 6, STOP)
    assert s.trained == (False, False, True, True, False, True, True)
    assert s.streams["behaviour_logprobs"] == (0.0, 0.0, -0.5, -0.5, 0.0, -0.1, -0.2)
    assert s.versions == ((2, 3), (1, 3), (1, 4))
    assert s.temperature == 0.7


def test_imitated_samples_are_like_given_text():
    """Temperature 1 and no behaviour policy, whatever they were drawn at."""
    s = sequence_of(trajectory("ab", "c", sampling=Sampling(temperature=0.7)), is_imitated=True)
    assert s.temperature == 1.0 and not s.streams


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (raw_reward, (1.0, 0.0, 0.0, 0.0)),
        (group_mean, (0.75, -0.25, -0.25, -0.25)),
        (leave_one_out, (1.0, -1 / 3, -1 / 3, -1 / 3)),
        (group_mean_std, (1.5, -0.5, -0.5, -0.5)),
    ],
)
def test_advantages_of_one_right_in_four(advantage, expected):
    """Rewards 1 0 0 0: mean 1/4; the others' mean 0 and 1/3; sample deviation √((9/16 + 3/16)/3) = 1/2.

    A second group of equal rewards is there to be kept apart: its advantages are 0 (its raw rewards 1).
    """
    one = group("p", ("a", 1.0), ("b", 0.0), ("c", 0.0), ("d", 0.0))
    other = group("q", ("a", 1.0), ("b", 1.0))
    found = advantages(assigned([one, other], advantage))
    assert [found[f"p/{k}"] for k in range(4)] == pytest.approx(expected, abs=1e-5)
    assert [found["q/0"], found["q/1"]] == [1.0, 1.0] if advantage is raw_reward else [0.0, 0.0]


def test_failed_members_are_left_out_of_the_baseline():
    """Scores 1, failed, 0: the mean of the two that were judged is 1/2. As a zero the failure would make it 1/3."""
    found = advantages(assigned([group("p", ("a", 1.0), ("b", None), ("c", 0.0))], group_mean))
    assert found == {"p/0": 0.5, "p/2": -0.5}


@pytest.mark.parametrize("advantage", [leave_one_out, raw_reward, group_mean])
def test_the_only_judged_member_of_a_group_is_left_out(advantage):
    """It has no others to be compared with; leave-one-out would divide by zero."""
    lone, whole = group("p", ("a", 1.0), ("b", None)), group("q", ("a", 1.0), ("b", 0.0))
    assert {s.id for s in assigned([lone, whole], advantage)} == {"q/0", "q/1"}
    assert assigned([lone], advantage) == []


def test_a_problem_whose_greedy_completion_was_not_judged_has_no_baseline():
    """Greedy reward ½ of p alone: its samples get 1 − ½ and 0 − ½; those of q are left out, not given a zero."""
    credit = PolicyGradient(advantage=remax)
    groups = [group("p", ("a", 1.0), ("b", 0.0)), group("q", ("a", 1.0), ("b", 0.0))]
    assert advantages(credit.assign(credit.items(groups, {"p": 0.5}))) == {"p/0": 0.5, "p/1": -0.5}


def test_an_advantage_that_needs_more_samples_says_so():
    with pytest.raises(RecipeError, match="num_samples"):
        assigned([group("p", ("a", 1.0))], leave_one_out)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=5), Sampling(min_p=0.1)]
)
def test_policy_gradients_refuse_truncated_sampling(sampling: Sampling):
    judged = group("p", ("a", 1.0), ("b", 0.0), sampling=sampling)
    with pytest.raises(RecipeError, match="full distribution"):
        assigned([judged], group_mean)
    assert len(kept([judged], 4)) == 1  # imitation may sample as it likes


def test_expert_iteration_keeps_distinct_correct_samples_up_to_the_cap():
    """Replies a a b c d, of which b is wrong: a (its first sample), c and d are right and distinct; the cap keeps two,
    those sampled first. The problem without a right answer gives none."""
    easy = group("p", ("a", 1.0), ("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 1.0))
    hard = group("q", ("a", 0.0), ("b", None))
    assert [s.id for s in kept([easy, hard], 2)] == ["p/0", "p/3"]
    assert [s.id for s in kept([easy, hard], 9)] == ["p/0", "p/3", "p/4"]


def test_metrics_of_a_round_by_hand():
    """p: scores 1, 0, failed; q: 0 and failed, whose judged scores do not differ: no signal.

    Reward and accuracy are 1 of the 3 that were judged. Tokens with the stop token: (2 + 3 + 2) + (2 + 2) = 11 of 5.
    """
    groups = [group("p", ("a", 1.0), ("bb", 0.0), ("c", None)), group("q", ("a", 0.0), ("b", None))]
    found = group_metrics(groups)
    assert found["reward"] == found["accuracy"] == pytest.approx(1 / 3)
    assert found["mean_tokens"] == pytest.approx(11 / 5)
    assert found["no_signal_groups"] == 0.5
    assert found["failed"] == pytest.approx(2 / 5)
    assert found["truncated"] == 0.0
