"""Slots of a preallocated cache: whatever else runs, each completion's numbers are those of its own tokens."""

from __future__ import annotations

import pytest
import torch

from lydian.models import decode
from lydian.models.cache import SlotCache
from lydian.models.decode import Decoder, body_of
from tests.models.families import FAMILIES, VOCABULARY, make

PROMPTS = [[5, 6, 7], list(range(8, 21)), [30], [40, 41, 42, 43, 44]]


def plain_logits(family: str, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return make(family)(torch.tensor([tokens])).logits[0, -1]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5 * expected.abs().max().item(), rtol=0)


@pytest.mark.parametrize("prefill_tokens", [1, 4, 5, 26, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_chunks_of_any_size_give_the_same_numbers(family: str, prefill_tokens: int):
    """Four prompts of 1 to 13 tokens: alone and in up to 13 chunks, two at a time (26 = 2 · 13), or all at once."""
    decoder = Decoder(body_of(make(family)), num_slots=4, capacity=16, prefill_tokens=prefill_tokens)
    logits = decoder.logits(decoder.prefill(PROMPTS))
    for prompt, found in zip(PROMPTS, logits, strict=True):
        close(found, plain_logits(family, prompt))
    tokens = torch.tensor([1, 2, 3, 4])
    for prompt, token, found in zip(PROMPTS, tokens.tolist(), decoder.logits(decoder.step(tokens)), strict=True):
        close(found, plain_logits(family, [*prompt, token]))


def test_chunks_bound_what_is_computed_at_a_time():
    """A prompt of 13 tokens in chunks of 4: no pass is larger, and passes of several prompts keep to it too."""
    body = body_of(make("llama"))
    sizes = []
    hidden = body.hidden
    body.hidden = lambda tokens, *rest: sizes.append(tokens.numel()) or hidden(tokens, *rest)
    Decoder(body, num_slots=4, capacity=16, prefill_tokens=4).prefill(PROMPTS)
    assert sizes == [3, 4, 4, 4, 1, 1, 4, 1]
    sizes.clear()
    Decoder(body, num_slots=4, capacity=16, prefill_tokens=10).prefill([[5, 6], [7], [8, 9, 10], [11] * 4])
    assert sizes == [9, 4]  # three rows of three; a fourth would make them sixteen


SHARED = {"num_prompts": 5, "prompt_tokens": 13}


@pytest.mark.parametrize(
    ("family", "sharing"), [("llama", {}), ("gemma3", {}), ("llama", SHARED), ("qwen2", SHARED), ("qwen3", SHARED)]
)
def test_forks_steps_and_releases_keep_each_completion_its_own(family: str, sharing: dict[str, int]):
    """Twenty steps of random tokens in up to five slots; slots are freed, forked from and filled anew at random, and
    each step's logits are those of a plain pass over that completion's tokens. Forks begin at the prompt's end where
    prompts are shared, else anywhere."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: int(torch.randint(n, (1,), generator=generator))  # noqa: E731
    decoder = Decoder(body_of(make(family)), num_slots=5, capacity=64, **sharing)
    hidden = decoder.prefill(PROMPTS[:2])
    rows = [list(prompt) for prompt in PROMPTS[:2]]
    num_prompt = [len(prompt) for prompt in PROMPTS[:2]]
    for _ in range(20):
        for row, found in zip(rows, decoder.logits(hidden), strict=True):
            close(found, plain_logits(family, row))
        if len(rows) > 2 and draw(2):
            slot = draw(len(rows))
            moved = decoder.release(slot)
            for column in (rows, num_prompt):
                column[slot] = column[moved]
                column.pop()
        if len(rows) < 5 and draw(2):
            slot = draw(len(rows))
            num = num_prompt[slot] if sharing else 1 + draw(len(rows[slot]))
            decoder.fork(slot, num, 1)
            rows.append(rows[slot][:num])
            num_prompt.append(num)
        if len(rows) < 5 and draw(2):
            prompt = PROMPTS[draw(4)]
            decoder.prefill([prompt])
            rows.append(list(prompt))
            num_prompt.append(len(prompt))
        tokens = torch.randint(VOCABULARY, (len(rows),), generator=generator)
        hidden = decoder.step(tokens)
        rows = [[*row, token] for row, token in zip(rows, tokens.tolist(), strict=True)]


@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("prefill_tokens", [3, 1000])
@pytest.mark.parametrize(
    ("family", "sharing"),
    [("llama", {}), ("gemma3", {}), ("mistral_sliding", {}), ("llama", SHARED), ("qwen3", SHARED)],
)
def test_a_common_start_is_computed_once(family: str, sharing: dict[str, int], prefill_tokens: int, num_before: int):
    """Of five tokens: the numbers of prompts, of a fork's and of later steps are those without it, behind tuned keys
    and values too; no prompt is computed from its beginning."""
    start = [9, 3, 12, 50, 4]
    prompts = [start + prompt[:8] for prompt in PROMPTS]
    config = make(family).config.get_text_config()
    shape = (config.num_hidden_layers, 2, config.num_key_value_heads, num_before, 8)
    prefix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) if num_before else None
    results, sizes = [], []
    for common in ([], start):
        body = body_of(make(family))
        hidden = body.hidden
        body.hidden = lambda tokens, *rest, hidden=hidden: sizes.append(tokens.numel()) or hidden(tokens, *rest)
        settings = {"num_slots": 5, "capacity": 16, "prefix": prefix, "common": common}
        decoder = Decoder(body, prefill_tokens=prefill_tokens, **settings, **sharing)
        sizes.clear()
        logits = [decoder.logits(decoder.prefill(prompts))]
        decoder.fork(1, len(prompts[1]), 1)
        logits += [decoder.logits(decoder.step(torch.arange(1, 6))) for _ in range(2)]
        results.append(torch.cat(logits))
        if prefill_tokens == 1000:
            assert sizes[0] == 4 * (13 - len(common))  # the longest prompt has 13 tokens
    close(results[1], results[0])
    if not num_before:
        close(results[1][0], plain_logits(family, prompts[0]))


def test_a_long_start_bounds_the_keys_that_are_read_at_a_time(monkeypatch):
    """Four prompts of 20 tokens and one of their own, passes of 4: all at once would read 84 keys, at most 8 · 4 may
    be, which only single prompts keep to; with 2 · 21 keys, pairs do."""
    sizes = []
    for most, expected in ((8, [1] * 4), (11, [2, 2])):
        monkeypatch.setattr(decode, "MOST_KEYS", most)
        body = body_of(make("llama"))
        hidden = body.hidden
        body.hidden = lambda tokens, *rest, hidden=hidden: sizes.append(tokens.numel()) or hidden(tokens, *rest)
        start = list(range(5, 25))
        decoder = Decoder(body, num_slots=4, capacity=24, prefill_tokens=4, common=start)
        sizes.clear()
        decoder.prefill([[*start, 30 + k] for k in range(4)])
        assert sizes == expected


def test_a_row_gives_its_states_whatever_each_layer_holds():
    """Two layers of two heads with keys of 3 numbers, values of 5 and of 4: latent attention caches such."""
    cache = SlotCache(2, 4, torch.device("cpu"))
    cache.begin(0, torch.arange(2)[None], 2)
    written = [(torch.randn(1, 2, 2, 3), torch.randn(1, 2, 2, width)) for width in (5, 4)]
    for layer, (keys, values) in enumerate(written):
        cache.update(keys, values, layer)
    cache.add([2])
    for found, expected in zip(cache.states(0), written, strict=True):
        assert all(torch.equal(a, b[0]) for a, b in zip(found, expected, strict=True))


def test_nothing_of_a_former_completion_is_seen():
    """A slot whose buffers are full of huge numbers serves the next completion as a fresh one would."""
    decoder = Decoder(body_of(make("llama")), num_slots=2, capacity=16)
    decoder.prefill([PROMPTS[1]])
    with torch.inference_mode():
        for buffers in decoder._slots._buffers:
            for buffer in buffers:
                buffer.fill_(1e30)
    decoder._slots.num = 0
    close(decoder.logits(decoder.prefill([PROMPTS[0]]))[0], plain_logits("llama", PROMPTS[0]))


def test_a_prompt_is_held_once_for_its_completions():
    """Four completions each of two prompts of 5 and 13 tokens, three steps: two rows of prompts, eight of three tokens
    each; a prompt goes with its last completion."""
    decoder = Decoder(body_of(make("llama")), num_slots=8, capacity=20, num_prompts=8, prompt_tokens=13)
    decoder.prefill([PROMPTS[3], PROMPTS[1]])
    for slot in (0, 1):
        decoder.fork(slot, len(PROMPTS[3 - 2 * slot]), 3)
    for _ in range(3):
        decoder.step(torch.arange(8))
    assert (decoder._prompts.num, decoder._prompts.lengths[:2].tolist()) == (2, [5, 13])
    assert (decoder._slots.num, decoder._slots.lengths.tolist()) == (8, [3] * 8)
    assert decoder._slots.held(0)[0].shape[2] == 3
    for _ in range(8):
        decoder.release(0)
    assert (decoder._prompts.num, decoder._slots.num) == (0, 0)


def test_keys_stay_fp32_on_a_cpu_and_attention_is_exacter_for_it():
    """Of bf16 weights: hidden states after 30 steps, against fp32 arithmetic with the same weights, are no further off
    than transformers' in bf16."""
    tokens = torch.randint(VOCABULARY, (34,), generator=torch.Generator().manual_seed(1)).tolist()
    model = make("llama").bfloat16()
    with torch.no_grad():
        exact = make("llama").bfloat16().float()(torch.tensor([tokens])).logits[0, -1]
        rounded = model(torch.tensor([tokens])).logits[0, -1].float()
    decoder = Decoder(body_of(model), num_slots=1, capacity=34, num_prompts=1, prompt_tokens=4)
    decoder.prefill([tokens[:4]])
    for token in tokens[4:]:
        hidden = decoder.step(torch.tensor([token]))
    assert decoder._slots.held(0)[0].dtype is torch.float32
    assert (decoder.logits(hidden)[0] - exact).abs().mean() < 1.2 * (rounded - exact).abs().mean()
