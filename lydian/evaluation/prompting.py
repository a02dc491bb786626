"""How a benchmark's questions are put: text around them, a system message, worked examples with fixed ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lydian.data.problems import Conversation, Message, Problem
from lydian.errors import InputError

SEPARATOR = "\n\n"
"""Between worked examples in a plain prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """Worked examples, in the order in which they are shown: conversations of a question and its reply.

    examples    shown before every problem
    by_subject  subject → those shown before problems whose metadata name this `subject`, after the others
    """

    examples: tuple[Conversation, ...] = ()
    by_subject: Mapping[str, tuple[Conversation, ...]] = field(default_factory=dict)

    def of(self, problem: Problem) -> tuple[Conversation, ...]:
        """The problem's examples. Raises InputError if there are some by subject, and none of this problem's."""
        if not self.by_subject:
            return self.examples
        subject = str(problem.metadata.get("subject", ""))
        if subject not in self.by_subject:
            raise InputError(
                where=f"problem {problem.id!r}, few-shot examples",
                given=f"the subject {subject!r}",
                expected=f"one of {len(self.by_subject)}, such as {', '.join(list(self.by_subject)[:3])}",
                fix="Add examples of this subject, or name fixed ids.",
            )
        return (*self.examples, *self.by_subject[subject])

    def __post_init__(self) -> None:
        for example in (*self.examples, *(e for examples in self.by_subject.values() for e in examples)):
            if [message.role for message in example.messages] != ["user", "assistant"]:
                raise InputError(
                    where=f"few-shot example {example.id!r}",
                    given=[message.role for message in example.messages],
                    expected="one question and one reply",
                    fix="Choose another example.",
                )


def with_prompt(
    problems: Iterable[Problem], *, prompt: str, system: str | None, few_shot: FewShot, is_chat: bool
) -> tuple[Problem, ...]:
    r"""The problems as the model is to see them.

    prompt    text around each question and each example's question, {question} in it once
    system    system message before all others; in a plain prompt its text stands first
    few_shot  turns before the question in a chat; in a plain prompt texts before it, two line breaks between them
    is_chat   whether messages stay messages, or become the one text that a plain template takes

    An example that is one of the problems is left out for that problem: it would give the answer away. Raises
    InputError for a problem of several messages in a plain prompt, and for a subject without examples.

    >>> ask = Problem(id="1", messages=(Message(role="user", content="1 + 1 = ?"),))
    >>> with_prompt([ask], prompt="Q: {question}\nA:", system=None, few_shot=FewShot(), is_chat=False)[0].question
    'Q: 1 + 1 = ?\nA:'
    """
    return tuple(_put(problem, prompt, system, few_shot, is_chat) for problem in problems)


def _put(problem: Problem, prompt: str, system: str | None, few_shot: FewShot, is_chat: bool) -> Problem:
    def filled(text: str) -> str:
        return prompt.replace("{question}", text)

    *before, last = problem.messages
    examples = [e for e in few_shot.of(problem) if e.messages[0].content != last.content]
    if is_chat:
        turns = [
            message
            for example in examples
            for message in (
                replace(example.messages[0], content=filled(example.messages[0].content)),
                example.messages[1],
            )
        ]
        opening = [] if system is None else [Message(role="system", content=system)]
        return replace(problem, messages=(*opening, *turns, *before, replace(last, content=filled(last.content))))
    if before:
        raise InputError(
            where=f"problem {problem.id!r}",
            given=f"{len(problem.messages)} messages in a plain prompt",
            expected="one message",
            fix="Use a chat template for problems of several messages.",
        )
    shown = [f"{filled(example.messages[0].content)} {example.messages[1].content}" for example in examples]
    text = SEPARATOR.join([*([] if system is None else [system]), *shown, filled(last.content)])
    return replace(problem, messages=(replace(last, content=text),))
