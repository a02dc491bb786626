"""The local engine: samples with a copy of the model in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lydian.data.trajectory import Completion, Finish, Sampling
from lydian.errors import EngineError
from lydian.models.decode import CausalLM, Decoder, Prefill
from lydian.models.load import load_model
from lydian.models.packed import pack_linears
from lydian.models.weights import Weights
from lydian.rollout.draw import draw, uniforms
from lydian.rollout.engine import Progress, Request
from lydian.text.template import Template

STOP_STRING_TOKENS = 16
"""A stop string is looked for in the text of this many last tokens, and the length of the string more."""

MOST_SLOTS = 256
"""More completions side by side no longer pay on any processor we measured."""


@dataclass(slots=True)
class _Running:
    """A completion in the making, and where it goes."""

    request: int
    sample: int
    uniform: np.ndarray
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class LocalEngine:
    """Samples completions with its own copy of a transformers model; `load` brings new weights into the copy.

    model        a transformers causal language model without adapters; the engine keeps it and overwrites its weights
    stop_tokens  ids that end a completion; they are part of it
    decode       token ids → text, for stop strings
    cache_bytes  memory for keys and values; with the longest completion it gives how many run side by side
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        stop_tokens: frozenset[int],
        decode: Callable[[Seq[int]], str],
        cache_bytes: int = 1 << 30,
        version: int = 0,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._packed = pack_linears(model)
        self._parameters = dict(model.named_parameters())
        self._stop_tokens = stop_tokens
        self._decode = decode
        self._cache_bytes = cache_bytes
        self._version = version
        self._decoder: Decoder | None = None

    @classmethod
    def of(cls, source: str | Path, template: Template) -> LocalEngine:
        """An engine around a checkpoint (see `load_model`) that decodes and stops as the template says."""
        loaded = load_model(source)
        loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
        return cls(loaded.model, stop_tokens=template.stop_tokens | loaded.stop_tokens, decode=template.decode)

    @property
    def version(self) -> int:
        return self._version

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Copies a published version into the engine's model. Raises EngineError if a parameter is missing."""
        missing = sorted((self._parameters.keys() | self._packed.keys()) - weights.tensors.keys())
        if missing:
            raise EngineError(
                where="LocalEngine.load",
                given=f"weights without {missing[:3]}{'…' if len(missing) > 3 else ''}",
                expected="a tensor for every parameter of the engine's model",
                fix="Publish the weights of the same base model, adapters merged.",
            )
        for name, parameter in self._parameters.items():
            parameter.copy_(weights.tensors[name])
        for name, layer in self._packed.items():
            layer.load(weights.tensors[name])
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

    def _run(self, requests: dict[int, Request], sampling: Sampling) -> Iterator[tuple[_Running, Completion]]:
        """Decodes with slots that are filled from the queue as soon as they are free."""
        longest = max(len(r.prompt) for r in requests.values())
        decoder = self._sized_decoder(sum(r.num_samples for r in requests.values()), longest + sampling.max_tokens)
        queue = deque((i, k) for i, r in requests.items() for k in range(r.num_samples))
        running: list[_Running] = []
        prompt: tuple[int, Prefill] | None = None
        hidden: Tensor | None = None
        while queue or running:
            fresh = []
            while queue and decoder.num_active < decoder.num_slots:
                index, sample = queue.popleft()
                if prompt is None or prompt[0] != index:
                    prompt = (index, decoder.prefill(requests[index].prompt))
                decoder.admit(prompt[1])
                fresh.append(prompt[1].hidden)
                request = requests[index]
                numbers = uniforms(
                    sampling.seed, request.problem_id, request.first_sample + sample, sampling.max_tokens
                )
                running.append(_Running(index, sample, numbers))
            states = ([hidden] if hidden is not None else []) + ([torch.stack(fresh)] if fresh else [])
            tokens = self._append(running, decoder.logits(torch.cat(states)), sampling)
            keep = list(range(len(running)))
            for slot in reversed(range(len(running))):
                finish = self._finish(running[slot], sampling)
                if finish is None:
                    continue
                yield running[slot], self._completion(running[slot], sampling, finish)
                moved = decoder.release(slot)
                keep[slot] = keep[moved]
                running[slot] = running[moved]
                running.pop()
                keep.pop()
            hidden = decoder.step(tokens[keep]) if running else None

    def _sized_decoder(self, num_completions: int, capacity: int) -> Decoder:
        """The decoder of the last call if it is large enough; its buffers are the engine's largest cost in memory."""
        room = self._cache_bytes // (capacity * Decoder.bytes_per_token(self._model))
        slots = max(1, min(num_completions, room, MOST_SLOTS))
        current = self._decoder
        if current is None or current.num_slots < slots or current.capacity < capacity:
            self._decoder = current = None  # free the old buffers before the new ones are made
            self._decoder = current = Decoder(self._model, num_slots=slots, capacity=capacity)
        current.num_active = 0
        return current

    def _append(self, running: list[_Running], logits: Tensor, sampling: Sampling) -> Tensor:
        numbers = torch.tensor([r.uniform[len(r.tokens)] for r in running], dtype=torch.float64)
        with torch.inference_mode():
            tokens, logprobs = draw(logits, sampling, numbers)
        for run, token, logprob in zip(running, tokens.tolist(), logprobs.tolist(), strict=True):
            run.tokens.append(token)
            run.logprobs.append(logprob)
        return tokens

    def _finish(self, run: _Running, sampling: Sampling) -> Finish | None:
        if run.tokens[-1] in self._stop_tokens:
            return Finish.STOP
        if sampling.stop:
            tail = self._decode(run.tokens[-(STOP_STRING_TOKENS + max(map(len, sampling.stop))) :])
            if any(stop in tail for stop in sampling.stop):
                return Finish.STOP
        return Finish.LENGTH if len(run.tokens) >= sampling.max_tokens else None

    def _completion(self, run: _Running, sampling: Sampling, finish: Finish) -> Completion:
        return Completion(
            tokens=tuple(run.tokens),
            logprobs=tuple(min(x, 0.0) for x in run.logprobs),
            sampling=sampling,
            versions=((len(run.tokens), self._version),),
            finish=finish,
        )
