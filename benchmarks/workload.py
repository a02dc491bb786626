"""What both systems work on, made once in the parent: prompts, conversations and pairs as token ids, and their cost.

The tiny model gets generated arithmetic; SmolLM2 gets GSM8K where $LYDIAN_DATA holds it, else arithmetic too.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydian.data.arithmetic import arithmetic_preferences
from lydian.data.problems import Message
from lydian.models.load import locate
from lydian.models.read import read_tokenizer
from lydian.text.template import Template, make_template

PROMPTS = {"tiny": "{question}\nSteps:", "smollm2-135m": "Question: {question}\nAnswer:"}
LONGEST = 512
"""Tokens of the longest conversation that is taken; the tiny model has no more positions."""

Text = tuple[str, str, str]
"""Question, right solution, wrong solution."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of a model's matrices: what its linear layers cost.

    body   [out, in] of each matrix of all layers
    head   [out, in] of the output matrix
    """

    body: tuple[tuple[int, int], ...]
    head: tuple[int, int]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shapes:
        """From a Llama configuration."""
        size, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        head_size = config.get("head_dim") or size // heads
        queries, keys = heads * head_size, (config.get("num_key_value_heads") or heads) * head_size
        layer = [(queries, size), (keys, size), (keys, size), (size, queries), (inner, size), (inner, size)]
        layer.append((size, inner))
        return cls(tuple(layer * config["num_hidden_layers"]), (config["vocab_size"], size))

    def flops(self, tokens: float, sites: float, *, passes: float = 1) -> float:
        """Floating-point operations of the linear layers: `tokens` through the body, `sites` through the head.

        A forward pass counts 1, a backward pass 2 (1 where the weights are frozen); attention is not counted.
        """
        body = sum(a * b for a, b in self.body)
        return passes * 2 * (tokens * body + sites * self.head[0] * self.head[1])


def folder(model: str) -> Path:
    """Where the checkpoint lies; raises ModelError, with what to do, if it is not there."""
    return locate(model)


def shapes(model: str) -> Shapes:
    return Shapes.of(json.loads((folder(model) / "config.json").read_text(encoding="utf-8")))


def template_of(model: str) -> Template:
    return make_template("plain", read_tokenizer(folder(model)), prompt=PROMPTS[model])


def prompts(model: str, num: int) -> list[dict[str, Any]]:
    """`num` prompts as text and as ids."""
    template = template_of(model)
    result: list[dict[str, Any]] = []
    for index, (question, _, _) in enumerate(itertools.islice(_texts(model), num)):
        ids = template.encode_prompt((Message(role="user", content=question),))
        text = PROMPTS[model].format(question=question)
        result.append({"id": f"p{index}", "question": question, "text": text, "ids": list(ids)})
    return _enough(result, num)


def conversations(model: str, num: int) -> list[dict[str, Any]]:
    """`num` conversations as ids, with which of them are trained."""
    template = template_of(model)
    encoded = (_encoded(template, question, right) for question, right, _ in _texts(model))
    return _enough(list(itertools.islice((e for e in encoded if len(e["ids"]) <= LONGEST), num)), num)


def preferences(model: str, num: int) -> list[dict[str, Any]]:
    """`num` pairs of a right and a wrong solution to one question."""
    template = template_of(model)
    pairs = (
        {"chosen": _encoded(template, question, right), "rejected": _encoded(template, question, wrong)}
        for question, right, wrong in _texts(model)
        if wrong
    )
    kept = (pair for pair in pairs if max(len(side["ids"]) for side in pair.values()) <= LONGEST)
    return _enough(list(itertools.islice(kept, num)), num)


def write(content: object) -> str:
    """The content as a JSON file that workers read; its path."""
    handle, path = tempfile.mkstemp(prefix="workload", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return path


def source(model: str) -> str:
    """Where the texts come from, for the report."""
    return "GSM8K" if _has_gsm8k(model) else "generated arithmetic"


def _encoded(template: Template, question: str, reply: str) -> dict[str, Any]:
    whole = template.encode_conversation(
        (Message(role="user", content=question), Message(role="assistant", content=reply))
    )
    return {"ids": list(whole.tokens), "trained": [bool(used) for used in whole.trained]}


def _texts(model: str) -> Iterator[Text]:
    if _has_gsm8k(model):
        yield from _gsm8k(Path(os.environ["LYDIAN_DATA"]) / "gsm8k")
        return
    for preference in arithmetic_preferences(num=1500):
        yield preference.messages[0].content, preference.chosen, preference.rejected


def _gsm8k(place: Path) -> Iterator[Text]:
    """The solutions that models gave to the test problems, labelled right or wrong, then the training problems."""
    for row in _rows(place / "example_model_solutions.jsonl"):
        wrong = [entry["solution"] for entry in row.values() if isinstance(entry, dict) and not entry["is_correct"]]
        yield row["question"], _clean(row["ground_truth"]), _clean(wrong[0]) if wrong else ""
    for row in _rows(place / "train.jsonl"):
        yield row["question"], _clean(row["answer"]), ""


def _clean(solution: str) -> str:
    return re.sub(r"<<[^<>]*>>", "", solution).strip()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _has_gsm8k(model: str) -> bool:
    data = os.environ.get("LYDIAN_DATA")
    return model != "tiny" and bool(data) and (Path(data or "") / "gsm8k" / "train.jsonl").is_file()


def _enough(items: Sequence[dict[str, Any]], num: int) -> list[dict[str, Any]]:
    if len(items) < num:
        raise SystemExit(f"only {len(items)} of the {num} texts that this needs: ask for fewer alternations or rows")
    return list(items)
