"""Benchmarks as rows of a table: `read_row` gives one by name or file, `build_benchmark` makes the frozen evaluator.

To add one: a row in benchmarks.toml beside this file; a user's own is a TOML file with the same keys at its top.
"""

from __future__ import annotations

import difflib
import glob
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lydian.data.arithmetic import GENERATORS
from lydian.data.problems import Conversation, Message, Problem
from lydian.data.rows import load_conversations, load_problems
from lydian.data.selection import limit
from lydian.data.sources import open_source
from lydian.data.trajectory import Sampling
from lydian.errors import DataError, InputError, LydianError, RecipeError
from lydian.evaluation import reasoning_gym
from lydian.evaluation.benchmark import Benchmark
from lydian.evaluation.prompting import FewShot, with_prompt
from lydian.evaluation.thinking import Thinking, without_thinking
from lydian.verifiers import make_verifier

if TYPE_CHECKING:
    from lydian.text.template import Template

SHIPPED = Path(__file__).with_name("benchmarks.toml")
_ROW_COLUMN = "lydian_row_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """What a benchmark is made of.

    name        of the benchmark
    measure     accuracy of verified answers, or perplexity of a text
    path        files, relative to the data's folder or the current one, with * for several; or one hub id
    questions   instead of a path: the questions themselves
    generator   instead of a path: `arithmetic`, …, or `reasoning_gym`
    generator_settings  its keyword arguments
    split       picks the split of a hub data set
    columns     field → column of the file, as `load_problems` takes it
    subject     whether each problem's metadata get its `subject`: its file's name as far as the last underscore
    structured  columns with lists or tables that the verifier reads (`metadata` holds single values otherwise)
    limit       at most this many problems, chosen by a hash of their text
    template    chat, plain, or auto: chat where the tokenizer has a chat template
    prompt      text around each question, {question} in it once
    system      system message; None leaves it to the template
    few_shot    worked examples before each question: {path, ids}, the same for all, in this order; or {path, num}, the
                first `num` problems of the question's own subject, with their gold answers as replies
    sampling    temperature, max_tokens, … of `Sampling`
    num_samples completions a problem
    verifier    {name, …its settings}
    thinking    keep, or after_think: what stands up to the last </think> is removed before judging
    window      tokens of a window of perplexity
    """

    name: str
    measure: Literal["accuracy", "perplexity"] = "accuracy"
    path: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    generator: str | None = None
    generator_settings: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    subject: bool = False
    structured: tuple[str, ...] = ()
    limit: int | None = None
    template: Literal["auto", "chat", "plain"] = "auto"
    prompt: str = "{question}"
    system: str | None = None
    few_shot: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    verifier: Mapping[str, Any] = field(default_factory=dict)
    thinking: Thinking = "keep"
    window: int = 512

    def __post_init__(self) -> None:
        num_sources = bool(self.path) + bool(self.questions) + (self.generator is not None)
        self._require("path", f"{num_sources} sources", num_sources == 1, "one of path, questions and generator")
        self._require("measure", self.measure, self.measure in ("accuracy", "perplexity"), "accuracy or perplexity")
        self._require("template", self.template, self.template in ("auto", "chat", "plain"), "auto, chat or plain")
        self._require("prompt", self.prompt, self.prompt.count("{question}") == 1, "{question} in it, once")
        self._require("thinking", self.thinking, self.thinking in ("keep", "after_think"), "keep or after_think")
        is_judged = self.measure == "perplexity" or "name" in self.verifier
        self._require("verifier", dict(self.verifier), is_judged, '{ name = "…", …settings }')
        forms: list[set[str]] = [set(), {"path", "ids"}, *([{"path", "num"}] if self.subject else [])]
        few = set(self.few_shot) in forms
        self._require("few_shot", dict(self.few_shot), few, "{ path, ids }, or { path, num } together with subject")

    def _require(self, key: str, given: object, holds: bool, expected: str) -> None:
        if not holds:
            raise RecipeError(
                where=f"benchmark {self.name!r}, {key}", given=given, expected=expected, fix="Correct the row."
            )


def shipped_rows() -> dict[str, BenchmarkRow]:
    """The shipped benchmarks by name."""
    return {name: make_row(name, table) for name, table in tomllib.loads(SHIPPED.read_text("utf-8")).items()}


def read_row(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> BenchmarkRow:
    """The shipped row of that name, or the row in a .toml file, with keys changed by `overrides` (dots go deeper).

    Raises RecipeError for an unknown name, key or file, naming the nearest name that exists.
    """
    if name_or_path.endswith(".toml"):
        try:
            table = tomllib.loads(Path(name_or_path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise RecipeError(
                where=name_or_path,
                given=f"{type(error).__name__}: {error}",
                expected="a TOML file with a benchmark's keys",
                fix="Check the path and the syntax.",
            ) from error
        name = str(table.pop("name", Path(name_or_path).stem))
    else:
        tables, name = tomllib.loads(SHIPPED.read_text("utf-8")), name_or_path
        if name not in tables:
            near = difflib.get_close_matches(name, tables, n=1)
            raise RecipeError(
                where="benchmark",
                given=repr(name),
                expected=f"one of {', '.join(tables)}, or a .toml file",
                fix=f"Did you mean {near[0]!r}?" if near else "Choose one of these.",
            )
        table = tables[name]
    for key, value in (overrides or {}).items():
        *parents, last = key.split(".")
        inner = table
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
        if key in ("path", "questions", "generator"):  # another source replaces the row's own
            for other in {"path", "questions", "generator"} - {key}:
                table.pop(other, None)
    return make_row(name, table)


def make_row(name: str, table: Mapping[str, Any]) -> BenchmarkRow:
    """The row of a table of keys. Raises RecipeError for a key that no row has, or a value of the wrong kind."""
    known = [item.name for item in fields(BenchmarkRow)]
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise RecipeError(
                where=f"benchmark {name!r}",
                given=f"the key {key!r}",
                expected=f"one of {', '.join(known)}",
                fix=f"Did you mean {near[0]!r}?" if near else "Remove it.",
            )
    lists = ("path", "questions", "structured")
    values: dict[str, Any] = {key: _as_tuple(value) if key in lists else value for key, value in table.items()}
    return BenchmarkRow(**({"name": name} | values))


def load_row_problems(row: BenchmarkRow, root: Path) -> tuple[Problem, ...]:
    """The row's problems before any prompt is put around them.

    root  folder that paths are relative to

    Raises DataError where files are absent or malformed, MissingExtraError where an optional package is.
    """
    if row.questions:
        problems = tuple(
            Problem(id=f"{row.name}:{number}", messages=(Message(role="user", content=text),), source=row.name)
            for number, text in enumerate(row.questions, start=1)
        )
    elif row.generator == "reasoning_gym":
        problems = _called(row, reasoning_gym.generate)
    elif row.generator is not None:
        if row.generator not in GENERATORS:
            raise RecipeError(
                where=f"benchmark {row.name!r}, generator",
                given=repr(row.generator),
                expected=f"reasoning_gym or one of {', '.join(GENERATORS)}",
                fix="Choose one of these.",
            )
        problems = _called(row, GENERATORS[row.generator])
    else:
        problems = _read_files(row, root)
    if row.subject:
        problems = tuple(replace(p, metadata={**p.metadata, "subject": _subject(p)}) for p in problems)
    return problems if row.limit is None else limit(problems, row.limit, 0)


def build_benchmark(row: BenchmarkRow, template: Template, root: Path) -> Benchmark:
    """The frozen evaluator of a row. Raises the errors of its parts, before a token is sampled."""
    few_shot = _few_shot(row, root) if row.few_shot else FewShot()
    problems = with_prompt(
        load_row_problems(row, root),
        prompt=row.prompt,
        system=row.system,
        few_shot=few_shot,
        is_chat=template.name != "plain",
    )
    settings = {key: value for key, value in row.verifier.items() if key != "name"}
    verifier = without_thinking(make_verifier(row.verifier["name"], **settings), row.thinking)
    return Benchmark(
        name=row.name,
        problems=problems,
        template=template,
        sampling=sampling_of(row),
        verifier=verifier,
        num_samples=row.num_samples,
    )


def sampling_of(row: BenchmarkRow) -> Sampling:
    """The row's sampling. Raises RecipeError for a setting that does not exist."""
    settings: dict[str, Any] = {key: tuple(v) if key == "stop" else v for key, v in row.sampling.items()}
    try:
        return Sampling(**settings)
    except TypeError as error:
        raise RecipeError(
            where=f"benchmark {row.name!r}, sampling",
            given=f"{sorted(row.sampling)} ({error})",
            expected=f"some of {', '.join(item.name for item in fields(Sampling))}",
            fix="Correct the row.",
        ) from error


def locate(row: BenchmarkRow, root: Path, paths: tuple[str, ...] | None = None) -> list[str]:
    """The files that the row's paths name, sorted where one is a pattern; a hub id stays as it is.

    Raises DataError where a pattern or a file with an ending matches nothing.
    """
    found: list[str] = []
    for path in row.path if paths is None else paths:
        places = [str(root / path), path]
        matches = next((hits for place in places if (hits := sorted(glob.glob(place)))), [])
        if not matches and (Path(path).suffix or "*" in path):
            raise DataError(
                where=f"benchmark {row.name!r}, path",
                given=f"no file {path!r} in {root} or here",
                expected="the benchmark's files: they are not bundled",
                fix="Put them there, set LYDIAN_DATA to their folder, or give the path: path=FILE.",
            )
        found += matches or [path]
    return found


def _read_files(row: BenchmarkRow, root: Path) -> tuple[Problem, ...]:
    paths: list[str] = locate(row, root)
    source: Any = paths[0] if len(paths) == 1 else paths
    if not row.structured:
        return load_problems(source, columns=row.columns, split=row.split).items
    raws = list(open_source(source, split=row.split, name=None).rows(_stop))
    rows = [{**raw.values, _ROW_COLUMN: number} for number, raw in enumerate(raws)]
    loaded = load_problems(rows, columns=row.columns, split=row.split, name=row.name)
    problems = []
    for problem in loaded.items:
        metadata = dict(problem.metadata)
        values = raws[int(str(metadata.pop(_ROW_COLUMN)))].values
        metadata |= {key: values[key] for key in row.structured if key in values}
        problems.append(replace(problem, metadata=metadata))
    return tuple(problems)


def _few_shot(row: BenchmarkRow, root: Path) -> FewShot:
    paths = locate(row, root, (str(row.few_shot["path"]),))
    if "num" in row.few_shot:
        return _by_subject(row, paths)
    (path,) = paths
    found = {item.id: item for item in load_conversations(path).items}
    missing = [name for name in row.few_shot["ids"] if name not in found]
    if missing:
        raise DataError(
            where=f"benchmark {row.name!r}, few_shot.ids",
            given=f"{missing}, which {path} does not have",
            expected=f"ids such as {', '.join(list(found)[:3])}",
            fix="Name ids of that file.",
        )
    return FewShot(examples=tuple(found[name] for name in row.few_shot["ids"]))


def _by_subject(row: BenchmarkRow, paths: list[str]) -> FewShot:
    """The first problems of each subject as conversations: the question, and the gold answer as the reply."""
    examples: dict[str, list[Conversation]] = {}
    for problem in load_problems(paths, columns=row.columns).items:
        shown = examples.setdefault(_subject(problem), [])
        if problem.answer is not None and len(shown) < int(row.few_shot["num"]):
            reply = Message(role="assistant", content=problem.answer)
            shown.append(Conversation(id=problem.id, messages=(*problem.messages, reply)))
    return FewShot(by_subject={subject: tuple(shown) for subject, shown in examples.items()})


def _subject(problem: Problem) -> str:
    """The name of the file that a problem came from, as far as its last underscore: virology_test → virology."""
    return problem.source.rpartition("_")[0] or problem.source


def _called(row: BenchmarkRow, generator: Any) -> tuple[Problem, ...]:
    try:
        return tuple(generator(**row.generator_settings))
    except TypeError as error:
        raise InputError(
            where=f"benchmark {row.name!r}, generator_settings",
            given=f"{dict(row.generator_settings)} ({error})",
            expected=f"the settings of {row.generator}",
            fix="Correct the row.",
        ) from error


def _as_tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _stop(_: str, error: LydianError) -> None:
    raise error
