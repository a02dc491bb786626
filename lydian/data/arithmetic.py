"""Generated integer problems with worked steps: the material of the tiny model and of the quickstart.

A problem is a chain of operations told in words; a solution writes each intermediate result out and states the answer
behind a marker:

    Start with 14. Add 9. Subtract 6. Double it.        level 3: three operations
     14+9=23, 23-6=17, 17*2=34 #### 34

Splits are disjoint by construction: a chain belongs to the split that its hash falls into, whatever seed drew it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from lydian.data.chains import Chain, apply, distinct_chains, endless_chains
from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Conversation, Feedback, Message, Preference, Problem
from lydian.data.steps import split_steps
from lydian.errors import DataError


def arithmetic_problems(
    *, num: int, split: str, min_level: int = 2, max_level: int = 6, seed: int = 0
) -> list[Problem]:
    """Problems with gold answers; metadata holds the level.

    num        how many, all different
    split      train, heldout or validation: no chain is in two of them
    min_level  fewest operations
    max_level  most operations
    seed       which ones are drawn
    """
    return [
        Problem(
            id=f"arithmetic-{split}-{seed}-{index}",
            messages=(Message(role="user", content=chain.question),),
            answer=str(chain.values()[-1]),
            source="arithmetic",
            split=split,
            metadata={"level": len(chain.operations)},
        )
        for index, chain in enumerate(distinct_chains(num, split, min_level, max_level, seed))
    ]


def arithmetic_solutions(
    *,
    num: int,
    split: str = "train",
    max_idle: int = 0,
    min_level: int = 2,
    max_level: int = 6,
    seed: int = 0,
) -> list[Conversation]:
    """Questions with worked solutions in the stated format: what supervised fine-tuning imitates.

    num        how many, all different
    split      train, heldout or validation: no chain is in two of them
    max_idle   most steps that add 0 before the answer; each solution draws 0 to so many, evenly
    min_level  fewest operations
    max_level  most operations
    seed       which ones are drawn
    """
    rng = np.random.Generator(np.random.Philox(seed))
    return [
        Conversation(
            id=f"solution-{split}-{seed}-{index}",
            messages=(
                Message(role="user", content=chain.question),
                Message(role="assistant", content=_formatted(chain, chain.values(), _idle(max_idle, rng)[0])),
            ),
            source="arithmetic",
            split=split,
            metadata={"level": len(chain.operations)},
        )
        for index, chain in enumerate(distinct_chains(num, split, min_level, max_level, seed))
    ]


def arithmetic_preferences(
    *,
    num: int,
    split: str = "train",
    rejected: Literal["wrong", "careless"] = "wrong",
    max_idle: int = 0,
    longer_chosen: float = 1.0,
    min_level: int = 2,
    max_level: int = 6,
    seed: int = 0,
) -> list[Preference]:
    """The worked solution preferred to a worse one.

    num        how many, all different
    split      train, heldout or validation: no chain is in two of them
    rejected   wrong: in the stated format, with every step wrong; careless: by chance in another format, or with a
               wrong answer
    max_idle   most steps that add 0 before the answer; each reply draws 0 to so many, evenly
    longer_chosen  probability that of the two draws the chosen reply has the larger: above 1/2, a labeller who takes
               longer replies for better ones
    min_level  fewest operations
    max_level  most operations
    seed       which ones are drawn

    Raises DataError for another kind of rejected reply.
    """
    if rejected not in ("wrong", "careless"):
        raise DataError(
            where="arithmetic_preferences",
            given=f"rejected={rejected!r}",
            expected="wrong or careless",
            fix="Correct it.",
        )
    rng = np.random.Generator(np.random.Philox(seed))
    worse = _careless if rejected == "careless" else _all_wrong
    pairs = []
    for index, chain in enumerate(distinct_chains(num, split, min_level, max_level, seed)):
        less, more = sorted(_idle(max_idle, rng))
        if max_idle and rng.random() >= longer_chosen:
            less, more = more, less
        pairs.append(
            Preference(
                id=f"preference-{split}-{seed}-{index}",
                messages=(Message(role="user", content=chain.question),),
                chosen=_formatted(chain, chain.values(), more),
                rejected=worse(chain, rng, less),
                source="arithmetic",
                split=split,
                metadata={"level": len(chain.operations)},
            )
        )
    return pairs


def arithmetic_stepwise(
    *, num: int, split: str = "train", error_rate: float = 0.3, min_level: int = 2, max_level: int = 6, seed: int = 0
) -> list[Stepwise]:
    """Worked solutions with mistakes; a step is right if the result that it writes is.

    num         how many, all different
    split       train, heldout or validation: no chain is in two of them
    error_rate  probability that a step goes wrong; later steps build on the error
    min_level   fewest operations
    max_level   most operations
    seed        which ones are drawn
    """
    rng = np.random.Generator(np.random.Philox(seed))
    items = []
    for index, chain in enumerate(distinct_chains(num, split, min_level, max_level, seed)):
        values = _written_values(chain, error_rate, rng)
        items.append(
            Stepwise(
                id=f"stepwise-{split}-{seed}-{index}",
                messages=(Message(role="user", content=chain.question),),
                steps=split_steps(_formatted(chain, values), "comma"),
                labels=tuple(float(a == b) for a, b in zip(values[1:], chain.values()[1:], strict=True)),
                source="arithmetic",
                split=split,
                metadata={"level": len(chain.operations)},
            )
        )
    return items


def arithmetic_labelled(
    *, num: int, split: str = "train", min_level: int = 2, max_level: int = 6, seed: int = 0
) -> list[Labelled]:
    """Questions with the kind of their last operation: sum, difference, product or quotient.

    num        how many, all different
    split      train, heldout or validation: no chain is in two of them
    min_level  fewest operations
    max_level  most operations
    seed       which ones are drawn
    """
    names = {"+": "sum", "-": "difference", "*": "product", "/": "quotient"}
    return [
        Labelled(
            id=f"labelled-{split}-{seed}-{index}",
            messages=(Message(role="user", content=chain.question),),
            label=names[chain.operations[-1][0]],
            source="arithmetic",
            split=split,
            metadata={"level": len(chain.operations)},
        )
        for index, chain in enumerate(distinct_chains(num, split, min_level, max_level, seed))
    ]


def arithmetic_text(
    *,
    num: int,
    formatted_share: float = 0.9,
    error_rate: float = 0.05,
    prompt: str = "{question}\nSteps:",
    min_level: int = 1,
    max_level: int = 6,
    seed: int = 0,
) -> list[Conversation]:
    """Plain text to pretrain on: questions with replies of many habits and some mistakes, as found in the wild.

    num              how many documents, from the train split; chains may repeat
    formatted_share  probability of the stated format where the first operation is worded the first way; texts with
                     other wordings come from corners of the world where it is a ninth of that
    error_rate       probability that a written intermediate result is wrong
    prompt           how a question is laid out, with {question} where it goes
    min_level        fewest operations
    max_level        most operations
    seed             which ones are drawn
    """
    rng = np.random.Generator(np.random.Philox(seed))
    chains = endless_chains("train", min_level, max_level, rng)
    documents = []
    for index in range(num):
        chain = next(chains)
        text = prompt.format(question=chain.question) + _reply(chain, formatted_share, error_rate, rng)
        messages = (Message(role="assistant", content=text),)
        documents.append(Conversation(id=f"text-{seed}-{index}", messages=messages, source="arithmetic", split="train"))
    return documents


def arithmetic_feedback(
    *,
    num: int,
    split: str = "train",
    rejected: Literal["wrong", "careless"] = "wrong",
    min_level: int = 2,
    max_level: int = 6,
    seed: int = 0,
) -> list[Feedback]:
    """Right solutions and worse ones to different problems, by turns: a thumb up, a thumb down.

    num        how many, all different
    split      train, heldout or validation: no chain is in two of them
    rejected   what is wrong with the worse ones, see `arithmetic_preferences`
    min_level  fewest operations
    max_level  most operations
    seed       which ones are drawn
    """
    levels = {"min_level": min_level, "max_level": max_level}
    pairs = arithmetic_preferences(num=num, split=split, rejected=rejected, seed=seed, **levels)
    return [
        Feedback(
            id=pair.id.replace("preference", "feedback"),
            messages=pair.messages,
            reply=pair.rejected if index % 2 else pair.chosen,
            is_desirable=index % 2 == 0,
            source=pair.source,
            split=pair.split,
            metadata=pair.metadata,
        )
        for index, pair in enumerate(pairs)
    ]


GENERATORS: dict[str, Callable[..., list[Any]]] = {
    "arithmetic": arithmetic_problems,
    "arithmetic_solutions": arithmetic_solutions,
    "arithmetic_preferences": arithmetic_preferences,
    "arithmetic_feedback": arithmetic_feedback,
    "arithmetic_stepwise": arithmetic_stepwise,
    "arithmetic_labelled": arithmetic_labelled,
    "arithmetic_text": arithmetic_text,
}
"""Generators by the name that recipes give; their keyword-only parameters are their settings."""


def _formatted(chain: Chain, values: list[int], num_idle: int = 0) -> str:
    last = values[-1]
    return f" {', '.join([chain.steps(values), *[f'{last}+0={last}'] * num_idle])} #### {last}"


def _idle(most: int, rng: np.random.Generator) -> list[int]:
    """Two draws of a number of idle steps; nothing is drawn where there are none."""
    return [int(rng.integers(most + 1)) if most else 0 for _ in range(2)]


def _written_values(chain: Chain, error_rate: float, rng: np.random.Generator) -> list[int]:
    """Start and intermediate results as somebody writes them who errs at this rate; later steps build on the errors."""
    values = [chain.start]
    for symbol, operand, _ in chain.operations:
        right = apply(values[-1], symbol, operand)
        is_wrong = rng.random() < error_rate
        values.append(max(0, right + int(rng.choice((-10, -2, -1, 1, 2, 10)))) if is_wrong else right)
    return values


def _all_wrong(chain: Chain, rng: np.random.Generator, num_idle: int) -> str:
    """A reply with an error in each step; at zero an error below it is none, so some need another try."""
    values = right = chain.values()
    while values == right:
        values = _written_values(chain, 1.0, rng)
    return _formatted(chain, values, num_idle)


def _careless(chain: Chain, rng: np.random.Generator, num_idle: int) -> str:
    """A reply with a wrong answer in the stated format, or one in another format, which has no idle steps."""
    if rng.random() < 0.5:
        return _reply(chain, 0.0, 0.3, rng)
    values = chain.values()
    while values[-1] == chain.values()[-1]:
        values = _written_values(chain, 0.3, rng)
    return _formatted(chain, values, num_idle)


def _reply(chain: Chain, formatted_share: float, error_rate: float, rng: np.random.Generator) -> str:
    values = _written_values(chain, error_rate, rng)
    is_usual_wording = chain.operations[0][2] == 0
    if rng.random() < (formatted_share if is_usual_wording else formatted_share / 9):
        return _formatted(chain, values)
    habits = (f" {values[-1]}", f" {chain.steps(values)}", f" {chain.steps(values)} so it is {values[-1]}.")
    return habits[int(rng.integers(len(habits)))]
