"""The local engine: memory budgets, the queue, stop strings. What all engines must do is in tests/contracts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lydian.data.trajectory import Completion, Finish, Sampling
from lydian.errors import EngineError
from lydian.models.memory import decode_row_bytes, prefill_token_bytes, shape_of
from lydian.rollout import local
from lydian.rollout.engine import Request
from lydian.rollout.local import STOP_STRING_INTERVAL, LocalEngine
from tests.models.families import make

STOP = frozenset({3, 4})
MANY_STOPS = frozenset(range(30, 40))
"""Of 97 tokens: completions end at all lengths."""


def text_of(tokens) -> str:
    return "".join(chr(ord("a") + t % 26) for t in tokens)


def engine(memory_bytes: int | None = 1 << 22, *, stop_tokens: frozenset[int] = STOP) -> LocalEngine:
    return LocalEngine(make("llama"), stop_tokens=stop_tokens, decode=text_of, memory_bytes=memory_bytes)


@pytest.fixture
def slots(monkeypatch) -> list[int]:
    """The number of slots of each decoder that is made."""
    made: list[int] = []
    decoder = local.Decoder
    monkeypatch.setattr(
        local, "Decoder", lambda body, **sizes: made.append(sizes["num_slots"]) or decoder(body, **sizes)
    )
    return made


def requests(sampling: Sampling, num_samples: int = 3, num_prompts: int = 4) -> list[Request]:
    return [
        Request(problem_id=f"p{i}", prompt=tuple(range(5, 8 + 3 * i)), num_samples=num_samples, sampling=sampling)
        for i in range(num_prompts)
    ]


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def budget(rows: int, capacity: int) -> int:
    """Bytes that are just enough for so many completions, with a chunk of a quarter of them."""
    shape = shape_of(make("llama").config)
    return int((rows + 0.1) * decode_row_bytes(shape, capacity, 4) / 0.75) + prefill_token_bytes(shape, capacity, 4)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_any_budget_gives_the_same_samples(rows: int, slots: list[int]):
    """Prompts of 3 to 12 tokens, 5 samples each, up to 40 tokens: slots are freed and filled at different times."""
    asked = requests(Sampling(max_tokens=40, temperature=1.3), num_samples=5)
    expected = flat(engine(stop_tokens=MANY_STOPS).generate(asked))
    assert len({len(c.tokens) for c in expected}) > 5
    found = flat(engine(budget(rows, 52), stop_tokens=MANY_STOPS).generate(asked))
    assert slots[0] == 20
    assert rows <= slots[1] < 1.5 * rows + 1
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    torch.testing.assert_close([c.logprobs for c in found], [c.logprobs for c in expected], atol=1e-4, rtol=0)


def test_a_prompt_is_computed_once_for_its_samples(monkeypatch):
    """Eight samples of each of two prompts: one pass over both prompts with room for all. With three slots the samples
    that follow copy the prompt from one that still runs, as long as there is one."""
    seen = []
    prefill = local.Decoder.prefill
    monkeypatch.setattr(local.Decoder, "prefill", lambda self, prompts: seen.extend(prompts) or prefill(self, prompts))
    asked = requests(Sampling(max_tokens=12, temperature=1.3), num_samples=8, num_prompts=2)
    engine().generate(asked)
    assert seen == [asked[0].prompt, asked[1].prompt]
    seen.clear()
    engine(budget(3, 18), stop_tokens=MANY_STOPS).generate(asked)
    assert len(seen) <= 4  # of sixteen samples


def test_what_prompts_begin_with_is_worth_a_pass_from_64_tokens_saved():
    """By hand: 2 · 32 tokens need not be computed again, 2 · 31 do; of equal prompts the last token is left."""
    start = tuple(range(32))
    assert local._common_start([(*start, 40), (*start, 41), (*start, 40, 3)]) == start
    assert local._common_start([(*start[1:], 40), (*start[1:], 41), (*start[1:], 40, 3)]) == ()
    assert local._common_start([(*start, *start, 5)] * 2) == start * 2


def test_a_common_start_changes_no_sample(monkeypatch):
    """Four prompts that begin with 40 tokens and then 5, 6: computed once or with each of them; the budget then has a
    place less."""
    asked = [
        replace(request, prompt=tuple(range(50, 90)) + request.prompt)
        for request in requests(Sampling(max_tokens=20, temperature=1.3))
    ]
    made: list[tuple[int, int]] = []
    decoder = local.Decoder

    def spied(body, **settings):
        made.append((len(settings["common"]), settings["num_slots"]))
        return decoder(body, **settings)

    monkeypatch.setattr(local, "Decoder", spied)
    memory_bytes = budget(8, 52 + 20)
    shared = flat(engine(memory_bytes).generate(asked))
    monkeypatch.setattr(local, "LEAST_SAVED", 1 << 20)
    apart = flat(engine(memory_bytes).generate(asked))
    assert [common for common, _ in made] == [42, 0]
    assert made[0][1] == made[1][1] - 1
    assert [c.tokens for c in shared] == [c.tokens for c in apart]
    torch.testing.assert_close([c.logprobs for c in shared], [c.logprobs for c in apart], atol=1e-4, rtol=0)


def test_what_cannot_fit_alone_is_refused_and_says_what_it_needs():
    """A row: 112 · (2 · 3 · 16 · 4 + 24) + 12 · 97 + 12 · 96 bytes; a token of a chunk: 4 (3 · 32 + 3 · 64 + 112)."""
    asked = requests(Sampling(max_tokens=100))
    with pytest.raises(EngineError, match=r"112 tokens together.*at least the 48\.4 KiB") as error:
        engine(20_000).generate(asked)
    assert "memory_bytes" in str(error.value)


def test_without_a_budget_the_engine_takes_half_of_what_is_free_now(monkeypatch, slots: list[int]):
    sampler = engine(None)
    for rows in (9, 3):
        monkeypatch.setattr(local, "free_bytes", lambda device, rows=rows: 2 * budget(rows, 18))
        sampler.generate(requests(Sampling(max_tokens=12), num_samples=8, num_prompts=2))
    assert 9 <= slots[0] <= 14
    assert 3 <= slots[1] <= 4


@pytest.mark.parametrize("stops", [("k",), ("k", "ab"), ("c", "xyz")])
def test_stop_strings_cut_where_they_first_appear(stops: tuple[str, ...]):
    """Each completion is the same sample's without stop strings, up to the first token whose text ends one of them;
    cuts fall on all places between two looks at the text, also before a stop token or the limit."""
    free = flat(engine().generate(requests(Sampling(max_tokens=50, temperature=1.5), num_samples=12)))
    sampling = Sampling(max_tokens=50, temperature=1.5, stop=stops)
    ends = set()
    for whole, found in zip(free, flat(engine().generate(requests(sampling, num_samples=12))), strict=True):
        text = text_of(whole.tokens)
        cuts = [text.find(stop) + len(stop) for stop in stops if stop in text]
        end = min(cuts, default=len(whole.tokens))
        assert found.tokens == whole.tokens[:end]
        assert found.finish is (Finish.STOP if cuts else whole.finish)
        ends |= {end % STOP_STRING_INTERVAL} if cuts else set()
    assert len(ends) > STOP_STRING_INTERVAL // 2


def test_a_last_token_may_be_stop_token_and_limit_at_once():
    """Of one token: stopped if it is a stop token, else cut."""
    for completion in flat(engine(stop_tokens=frozenset(range(48))).generate(requests(Sampling(max_tokens=1), 8))):
        assert completion.finish is (Finish.STOP if completion.tokens[0] < 48 else Finish.LENGTH)


def test_progress_counts_every_completion():
    counts = []
    engine().generate(requests(Sampling(max_tokens=9)), lambda done, total: counts.append((done, total)))
    assert counts == [(n, 12) for n in range(1, 13)]
