"""A teacher: which vocabularies it shares, and the same states whatever the layout."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from lydian.data.forest import Layout, plant
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher, shared_vocabulary
from tests.models.families import VOCABULARY, make

TINY_TOKENS = 320


@pytest.fixture(scope="module")
def tiny() -> PreTrainedTokenizerFast:
    return load_model("tiny").tokenizer


def changed(tokenizer: PreTrainedTokenizerFast, change: Callable[[dict], None]) -> PreTrainedTokenizerFast:
    """The tokenizer with its BPE model changed in place."""
    facts = json.loads(tokenizer.backend_tokenizer.to_str())
    change(facts["model"])
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(facts)))


def swap(model: dict) -> None:
    model["vocab"]["A"], model["vocab"]["B"] = model["vocab"]["B"], model["vocab"]["A"]


def forget_merges(model: dict) -> None:
    model["merges"] = []


def test_the_same_tokenizer_shares_all(tiny: PreTrainedTokenizerFast):
    assert shared_vocabulary(tiny, load_model("tiny").tokenizer, name="t") == TINY_TOKENS == len(tiny)


@pytest.mark.parametrize("is_students", [True, False])
def test_a_longer_vocabulary_shares_what_both_have(tiny: PreTrainedTokenizerFast, is_students: bool):
    """A token that one side added comes after all others."""
    longer = changed(tiny, lambda model: None)
    longer.add_tokens(["<think>"])
    assert len(longer) == TINY_TOKENS + 1
    pair = (longer, tiny) if is_students else (tiny, longer)
    assert shared_vocabulary(*pair, name="t") == TINY_TOKENS


def test_the_first_token_that_differs_is_named(tiny: PreTrainedTokenizerFast):
    first = tiny.get_vocab()["A"]
    with pytest.raises(ModelError, match=rf"teacher 't'.*id {first} is 'B', and 'A' to the student.*lydian respond"):
        shared_vocabulary(tiny, changed(tiny, swap), name="t")


def test_one_vocabulary_cut_otherwise_is_refused(tiny: PreTrainedTokenizerFast):
    """Without merges the same ids exist, and a text becomes other ids: the teacher never saw such contexts."""
    with pytest.raises(ModelError, match=r"same vocabulary, but it reads .* where the student reads"):
        shared_vocabulary(tiny, changed(tiny, forget_merges), name="t")


def test_padding_is_cut_off_and_said():
    """A teacher with 384 output rows for 320 tokens; it is frozen."""
    teacher, student = load_model("tiny"), load_model("tiny")
    teacher.model.resize_token_embeddings(384, mean_resizing=False)
    made = Teacher.of(teacher, student)
    assert made.num_tokens == TINY_TOKENS
    assert made.notes == ("the teacher has 384 output rows; ids from 320 on are left out of the comparison",)
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert all(p.requires_grad for p in student.model.parameters())


def sequences() -> list[Sequence]:
    """Two groups with a common prefix each, of unequal lengths, so that trees are packed and branch."""
    tokens = [(5, 6, 7, 8), (5, 6, 9), (5, 6, 7, 3, 4, 2), (11, 12, 13), (11, 12, 14, 15, 16)]
    return [
        Sequence(id=str(k), group=str(t[0]), tokens=t, trained=(False, False) + (True,) * (len(t) - 2))
        for k, t in enumerate(tokens)
    ]


def teacher(family: str, layout: Layout, num_tokens: int = VOCABULARY) -> Teacher:
    return Teacher(policy=Policy(make(family, seed=1).requires_grad_(False), layout=layout), num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("family", "layout", "student"),
    [
        ("llama", "shared", "shared"),
        ("llama", "single", "shared"),
        ("gpt2", "single", "shared"),
        ("gpt2", "single", "packed"),
        ("llama", "packed", "shared"),
        ("llama", "shared", "single"),
    ],
)
def test_its_states_are_right_whatever_the_students_layout(family: str, layout: Layout, student: Layout):
    """Against transformers on each sequence alone; the states are in the order of the forest's sites. A model that
    takes no mask gets no forest that needs one."""
    items = sequences()
    by_id = {s.id: s for s in items}
    made = teacher(family, layout)
    read, states_of = set[Layout](), made.policy.states
    made.policy.states = lambda forest: read.add(forest.layout) or states_of(forest)
    for forest in plant(items, dict.fromkeys(by_id, 1.0), layout=student, row_tokens=12, batch_tokens=24):
        found = made.hidden(forest, by_id)
        expected = []
        for name in forest.sequence_ids:
            with torch.no_grad():
                states = made.policy.model.base_model(torch.tensor([by_id[name].tokens])).last_hidden_state[0]
            expected.append(states[1:-1])  # tokens from the third on are trained, each predicted by the one before it
        torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)
    assert read == {layout if layout != "shared" else student}


def test_a_token_that_it_does_not_know_is_refused():
    items = sequences()
    (forest,) = plant(items, dict.fromkeys([s.id for s in items], 1.0))
    with pytest.raises(ModelError, match=r"token 16.*ids below 16"):
        teacher("llama", "shared", num_tokens=16).hidden(forest, {})
