"""The local engine: samples completions with a copy of the model in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from lydian.data.sequence import num_common
from lydian.data.trajectory import Completion, Finish, Sampling
from lydian.errors import EngineError
from lydian.models.decode import PREFILL_TOKENS, CausalLM, Decoder, body_of
from lydian.models.load import Dtype, load_model
from lydian.models.memory import (
    decode_plan,
    decode_row_bytes,
    free_bytes,
    in_units,
    prefill_token_bytes,
    shape_of,
)
from lydian.models.prefix import PREFIX
from lydian.models.weights import Weights
from lydian.rollout.draw import draw, uniforms
from lydian.rollout.engine import Progress, Request
from lydian.text.template import Template

STOP_STRING_TOKENS = 16
"""A stop string is looked for in the text of this many last tokens, and the length of the string more."""

STOP_STRING_INTERVAL = 8
"""Stop strings are looked for after every so many tokens; a completion is then cut where the first one appeared."""

MOST_SLOTS = 128
"""More completions side by side no longer pay on any processor we measured."""

LEAST_SAVED = 64
"""Tokens of prompts that need not be computed again from which one pass over what all begin with pays."""

MEMORY_SHARE = 0.5
"""Share that an engine without a budget takes of the memory that is free when `generate` is called."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A completion in the making: whose it is, and the hidden state that its prompt ends with."""

    request: int
    sample: int
    prompt_hidden: Tensor


class _Drafts:
    """The tokens drawn so far, one row a slot of the decoder; rows move as its slots do."""

    def __init__(self, num_slots: int, max_tokens: int, device: torch.device) -> None:
        shape = (num_slots, max_tokens)
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.uniforms = torch.zeros(shape, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(num_slots, dtype=torch.long, device=device)
        self._rows = torch.arange(num_slots, device=device)

    def begin(self, slot: int, numbers: Tensor) -> None:
        self.uniforms[slot] = numbers
        self.lengths[slot] = 0

    def next_uniforms(self, n: int) -> Tensor:
        return self.uniforms[self._rows[:n], self.lengths[:n]]

    def append(self, tokens: Tensor, logprobs: Tensor) -> Tensor:
        """One token more in each of the first rows; their new lengths."""
        n = len(tokens)
        place = self._rows[:n], self.lengths[:n]
        self.tokens[place] = tokens
        self.logprobs[place] = logprobs
        self.lengths[:n] += 1
        return self.lengths[:n]

    def last(self, n: int) -> Tensor:
        return self.tokens[self._rows[:n], self.lengths[:n] - 1]

    def move(self, source: int, target: int) -> None:
        for column in (self.tokens, self.logprobs, self.uniforms, self.lengths):
            column[target] = column[source]


class LocalEngine:
    """Samples completions with its own copy of a transformers model; `load` brings new weights into the copy.

    model         a transformers causal language model without adapters; the engine takes it over
    stop_tokens   ids that end a completion; they are part of it
    decode        token ids → text, for stop strings
    memory_bytes  budget for all that sampling needs beside the weights: keys and values, logits, a chunk of a prompt.
                  It gives how many completions run side by side. None: half of what is free when `generate` is called

    `generate` raises EngineError for a request of which not even one completion fits.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        stop_tokens: frozenset[int],
        decode: Callable[[Seq[int]], str],
        memory_bytes: int | None = None,
        version: int = 0,
    ) -> None:
        self._body = body_of(model.eval().requires_grad_(False))
        self._shape = shape_of(self._body.config)
        self._stop_tokens = stop_tokens
        self._is_stop = torch.zeros(self._shape.vocabulary, dtype=torch.bool, device=self._body.device)
        self._is_stop[[token for token in stop_tokens if token < self._shape.vocabulary]] = True
        self._decode = decode
        self._memory_bytes = memory_bytes
        self._version = version
        self._prefix: Tensor | None = None

    @classmethod
    def of(
        cls,
        source: str | Path,
        template: Template,
        *,
        dtype: Dtype = "float32",
        memory_bytes: int | None = None,
        new_tokens: Seq[str] = (),
    ) -> LocalEngine:
        """An engine around a checkpoint (see `load_model`) that decodes and stops as the template says."""
        loaded = load_model(source, dtype=dtype, new_tokens=new_tokens)
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
        stop_tokens = template.stop_tokens | loaded.stop_tokens
        return cls(loaded.model, stop_tokens=stop_tokens, decode=template.decode, memory_bytes=memory_bytes)

    @property
    def version(self) -> int:
        return self._version

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._body.dtype

    def load(self, weights: Weights) -> None:
        """Copies a published version into the engine's model. Raises EngineError if a parameter is missing."""
        missing = sorted(self._body.names - weights.tensors.keys())
        if missing:
            raise EngineError(
                where="LocalEngine.load",
                given=f"weights without {missing[:3]}{'…' if len(missing) > 3 else ''}",
                expected="a tensor for every parameter of the engine's model",
                fix="Publish the weights of the same base model, adapters merged.",
            )
        self._body.load(weights.tensors)
        self._prefix = weights.tensors.get(PREFIX)
        self._version = weights.version

    def generate(self, requests: Seq[Request], progress: Progress | None = None) -> list[list[Completion]]:
        """Completions of each request, in order; see `Engine`."""
        results: list[list[Completion | None]] = [[None] * r.num_samples for r in requests]
        total, done = sum(r.num_samples for r in requests), 0
        by_sampling: dict[Sampling, list[int]] = {}
        for index, request in enumerate(requests):
            by_sampling.setdefault(request.sampling, []).append(index)
        for sampling, indices in by_sampling.items():
            for run, completion in self._run({i: requests[i] for i in indices}, sampling):
                results[run.request][run.sample] = completion
                done += 1
                if progress:
                    progress(done, total)
        return [[c for c in completions if c is not None] for completions in results]

    def _run(self, requests: Mapping[int, Request], sampling: Sampling) -> Iterator[tuple[_Running, Completion]]:
        """Decodes with slots that are filled from the queue as soon as they are free."""
        decoder = self._decoder(requests.values(), sampling)
        drafts = _Drafts(decoder.num_slots, sampling.max_tokens, self._body.device)
        queue = deque((i, k) for i, r in requests.items() for k in range(r.num_samples))
        running: list[_Running] = []
        hidden: list[Tensor] = []
        while queue or running:
            hidden += self._admit(queue, running, decoder, drafts, requests)
            logits = decoder.logits(torch.cat(hidden))
            with torch.inference_mode():
                tokens, logprobs = draw(logits, sampling, drafts.next_uniforms(len(running)))
                lengths = drafts.append(tokens, logprobs)
                due = self._is_stop[tokens] | (lengths == sampling.max_tokens)
                if sampling.stop:
                    due |= lengths % STOP_STRING_INTERVAL == 0
            for slot in reversed(due.nonzero().flatten().tolist()):
                completion = self._completion(drafts, slot, sampling)
                if completion is not None:
                    yield running[slot], completion
                    moved = decoder.release(slot)
                    drafts.move(moved, slot)
                    running[slot] = running[moved]
                    running.pop()
            hidden = [decoder.step(drafts.last(len(running)))] if running else []

    def _admit(
        self,
        queue: deque[tuple[int, int]],
        running: list[_Running],
        decoder: Decoder,
        drafts: _Drafts,
        requests: Mapping[int, Request],
    ) -> list[Tensor]:
        """Fills free slots from the queue; returns the hidden states that predict the new completions' first tokens.

        A prompt is computed once, for all completions of it that begin together and those that follow while one of
        them still runs.
        """
        fresh = [queue.popleft() for _ in range(min(decoder.num_slots - len(running), len(queue)))]
        groups = [(index, [k for _, k in members]) for index, members in groupby(fresh, key=lambda item: item[0])]
        source = {run.request: slot for slot, run in enumerate(running)}
        prompts = [(index, samples.pop(0)) for index, samples in groups if index not in source]
        if prompts:
            first = len(running)
            states = decoder.prefill([requests[index].prompt for index, _ in prompts])
            running += [_Running(*key, state) for key, state in zip(prompts, states, strict=True)]
            source |= {index: first + n for n, (index, _) in enumerate(prompts)}
        for index, samples in groups:
            if samples:
                decoder.fork(source[index], len(requests[index].prompt), len(samples))
            running += [_Running(index, k, running[source[index]].prompt_hidden) for k in samples]
        started = running[len(running) - len(fresh) :]
        for slot, run in enumerate(started, start=len(running) - len(fresh)):
            request = requests[run.request]
            numbers = uniforms(
                request.sampling.seed,
                request.problem_id,
                request.first_sample + run.sample,
                request.sampling.max_tokens,
            )
            drafts.begin(slot, torch.from_numpy(numbers))
        return [torch.stack([run.prompt_hidden for run in started])] if started else []

    def _decoder(self, requests: Collection[Request], sampling: Sampling) -> Decoder:
        """Its buffers are the engine's largest cost in memory; they live as long as a call of `generate`.

        The budget is planned as if no two completions shared a prompt: in the end, the longest ones may not.
        """
        longest = max(len(request.prompt) for request in requests)
        capacity = longest + sampling.max_tokens
        fitting, chunk = self._plan(capacity + (0 if self._prefix is None else self._prefix.shape[3]))
        common = _common_start([request.prompt for request in requests]) if fitting > 1 else ()
        fitting -= bool(common)  # its keys and values are held once more
        slots = min(fitting, sum(request.num_samples for request in requests), MOST_SLOTS)
        return Decoder(
            self._body,
            num_slots=slots,
            capacity=capacity,
            num_prompts=min(slots, len(requests)) if self._body.shares_prompts else 0,
            prompt_tokens=longest,
            prefill_tokens=chunk,
            prefix=self._prefix,
            common=common,
        )

    def _plan(self, capacity: int) -> tuple[int, int]:
        """Completions that fit side by side, and tokens of a chunk. Raises EngineError if not one completion fits."""
        itemsize, budget = self._body.cache_dtype.itemsize, self._memory_bytes
        if budget is None:
            budget = int(MEMORY_SHARE * free_bytes(self._body.device))
        slots, chunk = decode_plan(
            self._shape, capacity=capacity, budget=budget, itemsize=itemsize, most_tokens=PREFILL_TOKENS
        )
        if slots == 0:
            needed = decode_row_bytes(self._shape, capacity, itemsize)
            needed += prefill_token_bytes(self._shape, capacity, itemsize)
            raise EngineError(
                where="LocalEngine.generate",
                given=f"a prompt and its completion of {capacity} tokens together, in {in_units(budget)}",
                expected=f"at least the {in_units(needed)} that one of them takes",
                fix="Lower sampling.max_tokens, leave out long prompts (max_tokens of the data set), or give the "
                "engine more memory_bytes.",
            )
        return slots, chunk

    def _completion(self, drafts: _Drafts, slot: int, sampling: Sampling) -> Completion | None:
        """The completion in a slot if it has ended, else None."""
        num = int(drafts.lengths[slot])
        tokens = drafts.tokens[slot, :num].tolist()
        finish = Finish.LENGTH if num == sampling.max_tokens else None
        if tokens[-1] in self._stop_tokens:
            finish = Finish.STOP
        end = self._stop_string_end(tokens, sampling.stop) if sampling.stop else None
        if end is not None:
            num, finish = end, Finish.STOP
        if finish is None:
            return None
        return Completion(
            tokens=tuple(tokens[:num]),
            logprobs=tuple(min(x, 0.0) for x in drafts.logprobs[slot, :num].tolist()),
            sampling=sampling,
            versions=((num, self._version),),
            finish=finish,
        )

    def _stop_string_end(self, tokens: list[int], stops: Seq[str]) -> int | None:
        """How many tokens there are where the text first holds a stop string; earlier intervals were looked at."""
        window = STOP_STRING_TOKENS + max(map(len, stops))
        seen = (len(tokens) - 1) // STOP_STRING_INTERVAL * STOP_STRING_INTERVAL

        def holds(first: int, last: int) -> bool:
            text = self._decode(tokens[max(0, first - window) : last])
            return any(stop in text for stop in stops)

        if not holds(seen + 1, len(tokens)):
            return None
        return next((end for end in range(seen + 1, len(tokens) + 1) if holds(end, end)), None)


def _common_start(prompts: Seq[tuple[int, ...]]) -> tuple[int, ...]:
    """What all prompts begin with, such as a system prompt; none where that is too little to gain by it. At least one
    token of each prompt is left, whose state predicts the first of a completion."""
    num = min(num_common(prompts), min(map(len, prompts)) - 1)
    return prompts[0][:num] if num * (len(prompts) - 1) >= LEAST_SAVED else ()
