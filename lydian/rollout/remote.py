"""Texts from a model that is asked for replies: behind an OpenAI-compatible server, or a checkpoint in this process.

A server gives no token ids and no logprobs of ours, so its replies are texts to imitate, not rollouts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish, Sampling
from lydian.rollout.engine import Engine, Request
from lydian.text.template import Template
from lydian.verifiers.chat_server import ChatReply, ChatServer, NoReply, ask_until

Ask = tuple[Problem, int]
"""A problem, and the index of the sample that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's reply to a problem; ABORT where there is none, for the `reason`.

    num_prompt_tokens, num_completion_tokens  as the model counts them; 0 where it does not say
    """

    problem_id: str
    sample: int
    text: str
    finish: Finish
    reason: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0


class Respondent(Protocol):
    """A model that is asked for texts.

    name  of the model, as it is recorded with each reply
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    def replies(self, asks: Seq[Ask], sampling: Sampling) -> Iterator[Reply]:
        """One reply an ask, as they come, in any order; the same ask gets the same seed whenever it is asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRespondent:
    """A model behind an OpenAI-compatible chat server.

    server           whom to ask
    num_tries        tries for each reply; the wait between them doubles
    backoff_seconds  the first wait
    num_parallel     requests under way at once

    What the server refuses, or does not give after all tries, is a reply with finish ABORT and the reason.
    """

    server: ChatServer
    num_tries: int = 4
    backoff_seconds: float = 1.0
    num_parallel: int = 8

    @property
    def name(self) -> str:
        return self.server.model

    def replies(self, asks: Seq[Ask], sampling: Sampling) -> Iterator[Reply]:
        """As they come; closing the iterator drops the asks that have not begun."""
        pool = ThreadPoolExecutor(self.num_parallel)
        try:
            for future in as_completed([pool.submit(self._reply, *ask, sampling) for ask in asks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _reply(self, problem: Problem, sample: int, sampling: Sampling) -> Reply:
        messages = [{"role": message.role, "content": message.content} for message in problem.messages]
        body = request_fields(problem.id, sample, sampling)

        def ask() -> ChatReply:
            return self.server.reply(messages, body)

        try:
            reply = ask_until(ask, num_tries=self.num_tries, backoff_seconds=self.backoff_seconds)
        except NoReply as error:
            return Reply(problem_id=problem.id, sample=sample, text="", finish=Finish.ABORT, reason=str(error))
        is_known = reply.finish in (Finish.STOP, Finish.LENGTH)
        return Reply(
            problem_id=problem.id,
            sample=sample,
            text=reply.text,
            finish=Finish(reply.finish) if is_known else Finish.ABORT,
            reason="" if is_known else f"finish_reason is {reply.finish!r}, neither stop nor length",
            num_prompt_tokens=reply.num_prompt_tokens,
            num_completion_tokens=reply.num_completion_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRespondent:
    """A checkpoint in this process.

    name        as it is recorded
    batch_size  replies that are sampled together, and lost if the process is killed
    """

    name: str
    engine: Engine
    template: Template
    batch_size: int = 256

    def replies(self, asks: Seq[Ask], sampling: Sampling) -> Iterator[Reply]:
        """A batch after another, in the order of the asks."""
        for start in range(0, len(asks), self.batch_size):
            requests = list(self._requests(asks[start : start + self.batch_size], sampling))
            for request, completions in zip(requests, self.engine.generate(requests), strict=True):
                for sample, completion in enumerate(completions, start=request.first_sample):
                    yield Reply(
                        problem_id=request.problem_id,
                        sample=sample,
                        text=self.template.decode(completion.tokens),
                        finish=completion.finish,
                        reason="aborted" if completion.finish is Finish.ABORT else "",
                        num_prompt_tokens=len(request.prompt),
                        num_completion_tokens=len(completion.tokens),
                    )

    def _requests(self, asks: Seq[Ask], sampling: Sampling) -> Iterator[Request]:
        """One request for each stretch of consecutive samples of a problem."""
        stretches = itertools.groupby(enumerate(asks), key=lambda place: (place[1][0].id, place[1][1] - place[0]))
        for _, stretch in stretches:
            members = [ask for _, ask in stretch]
            problem, first_sample = members[0]
            yield Request(
                problem_id=problem.id,
                prompt=self.template.encode_prompt(problem.messages),
                num_samples=len(members),
                sampling=sampling,
                first_sample=first_sample,
            )


def request_fields(problem_id: str, sample: int, sampling: Sampling) -> dict[str, Any]:
    """The sampling as fields of a chat request; each sample has its own seed. What is off is left out.

    top_k and min_p are no part of OpenAI's own interface, but of most servers that follow it.

    >>> fields = request_fields("p", 0, Sampling(temperature=0.5, max_tokens=8))
    >>> sorted(fields), fields["temperature"]
    (['max_tokens', 'seed', 'temperature'], 0.5)
    """
    seed = int.from_bytes(hashlib.sha256(repr((sampling.seed, problem_id, sample)).encode()).digest()[:4], "big") >> 1
    optional = {
        "top_p": sampling.top_p if sampling.top_p < 1 else None,
        "top_k": sampling.top_k or None,
        "min_p": sampling.min_p or None,
        "stop": list(sampling.stop) or None,
    }
    fields = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, "seed": seed}
    return fields | {name: value for name, value in optional.items() if value is not None}
