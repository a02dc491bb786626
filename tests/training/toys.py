"""A world of letters: a random Llama of 32 tokens, one letter a token, judged by patterns. Small enough to learn in
seconds and to check by hand."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lydian.data.problems import Message, Problem
from lydian.data.sequence import Pair, Sequence
from lydian.data.trajectory import Completion, Finish, Sampling, Trajectory, Turn
from lydian.data.verdict import Group, Outcome, Scored, Verdict
from lydian.rollout.local import LocalEngine
from lydian.text.encoded import Encoded

STOP = 1
FIRST = 2
VOCABULARY = 32


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(FIRST + ord(letter) - ord("a") for letter in text)


class Letters:
    """`a` is token 2, `b` token 3, …; token 1 ends a reply."""

    name = "letters"
    fingerprint = "letters:1"
    stop_tokens = frozenset({STOP})

    def encode_prompt(self, messages: Seq[Message]) -> tuple[int, ...]:
        return ids_of("".join(m.content for m in messages))

    def encode_conversation(self, messages: Seq[Message]) -> Encoded:
        prompt, reply = self.encode_prompt(messages[:-1]), (*ids_of(messages[-1].content), STOP)
        return Encoded(
            tokens=prompt + reply,
            trained=(False,) * len(prompt) + (True,) * len(reply),
            roles=("user",) * len(prompt) + ("assistant",) * len(reply),
        )

    def decode(self, tokens: Seq[int]) -> str:
        return "".join(chr(ord("a") + t - FIRST) if t >= FIRST else "." for t in tokens if t != STOP)

    def pieces(self, tokens: Seq[int]) -> list[str]:
        return [self.decode([t]) for t in tokens]


def llama(seed: int = 0) -> LlamaForCausalLM:
    """Nearly uniform predictions at first: transformers' own initialisation."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=STOP,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def engine(seed: int = 0) -> LocalEngine:
    return LocalEngine(llama(seed), stop_tokens=Letters.stop_tokens, decode=Letters().decode)


def problem(letters: str, answer: str | None = None, **metadata: object) -> Problem:
    message = Message(role="user", content=letters)
    return Problem(id=letters, messages=(message,), answer=answer, metadata=metadata)


def trajectory(
    question: str, reply: str, *, sample: int = 0, sampling: Sampling | None = None, finish: Finish = Finish.STOP
) -> Trajectory:
    """The reply was drawn by weight version 3, each token with log-probability −0.5."""
    tokens = (*ids_of(reply), STOP) if finish is Finish.STOP else ids_of(reply)
    completion = Completion(
        tokens=tokens,
        logprobs=(-0.5,) * len(tokens),
        sampling=sampling or Sampling(),
        versions=((len(tokens), 3),),
        finish=finish,
    )
    return Trajectory(
        problem_id=question, sample=sample, turns=(Turn(context=ids_of(question), completion=completion),)
    )


def verdict(score: float | None) -> Verdict:
    """1 is CORRECT, None FAILED, anything else WRONG."""
    outcome = Outcome.FAILED if score is None else Outcome.CORRECT if score == 1 else Outcome.WRONG
    return Verdict(score=score, outcome=outcome, extracted=None, verifier="toy:1")


def group(
    question: str, *judged: tuple[str, float | None], sampling: Sampling | None = None, **metadata: object
) -> Group:
    """One member for each (reply, score)."""
    members = tuple(
        Scored(trajectory=trajectory(question, reply, sample=k, sampling=sampling), verdict=verdict(score))
        for k, (reply, score) in enumerate(judged)
    )
    return Group(problem=problem(question, **metadata), members=members)


def sequence(question: str, reply: str, *, id: str = "", facts: dict[str, float] | None = None) -> Sequence:
    messages = (Message(role="user", content=question), Message(role="assistant", content=reply))
    encoded = Letters().encode_conversation(messages)
    return Sequence(
        id=id or f"{question}/{reply}",
        group=question,
        tokens=encoded.tokens,
        trained=encoded.trained,
        facts=facts or {},
    )


def pair(index: int, question: str, chosen: str, rejected: str) -> Pair:
    sides = {
        side: sequence(
            question,
            reply,
            id=f"{index}/{side}",
            facts={"pair": float(index), "is_chosen": is_chosen, "is_desirable": is_chosen},
        )
        for side, reply, is_chosen in (("chosen", chosen, 1.0), ("rejected", rejected, 0.0))
    }
    return Pair(**sides)
