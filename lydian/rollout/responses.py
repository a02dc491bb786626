"""A file of a model's replies that grows while they come, and the conversations that are made of it.

The log has one JSON object a line: first what was asked of whom, then a reply a line, failures too. What it holds is
never asked again, so that a run that was stopped goes on, and conversations can be chosen anew by another verifier.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish, Sampling
from lydian.errors import DataError, InputError
from lydian.rollout.remote import Ask, Reply, Respondent
from lydian.verifiers.verifier import Verifier, verify_all

Keep = Literal["all", "correct"]
Progress = Callable[[int, int], None]


class ResponseLog:
    """The replies on disk.

    path    the file; what it holds is read, and a last line that was not written to its end is cut off
    header  what was asked of whom: model, sampling, problems, …

    Raises InputError if the file holds replies of another header, DataError if a line is not a reply.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self._replies: dict[tuple[str, int], Reply] = {}
        stored = path.read_bytes() if path.exists() else b""
        size = stored.rfind(b"\n") + 1
        if not size:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_line(header), "utf-8")
            return
        if size < len(stored):
            os.truncate(path, size)
        first, *lines = stored[: size - 1].decode().split("\n")
        _require_same(path, _object(first, f"{path}:1"), json.loads(_line(header)))
        for number, line in enumerate(lines, start=2):
            self._note(_reply(line, f"{path}:{number}"))

    def missing(self, asks: Seq[Ask]) -> list[Ask]:
        """The asks that have no reply yet; failures count as none."""
        return [(problem, sample) for problem, sample in asks if self.find(problem.id, sample) is None]

    def find(self, problem_id: str, sample: int) -> Reply | None:
        """The reply to an ask; None if there is none, or only failures."""
        reply = self._replies.get((problem_id, sample))
        return None if reply is None or reply.finish is Finish.ABORT else reply

    def failure(self, problem_id: str, sample: int) -> str:
        """Why the last try of an ask failed."""
        reply = self._replies.get((problem_id, sample))
        return "never asked" if reply is None else reply.reason

    def add(self, reply: Reply) -> None:
        """Appends a reply."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(asdict(reply)))
        self._note(reply)

    def _note(self, reply: Reply) -> None:
        self._replies[reply.problem_id, reply.sample] = reply


def ask_all(
    respondent: Respondent, asks: Seq[Ask], sampling: Sampling, log: ResponseLog, progress: Progress | None = None
) -> None:
    """Asks for what the log does not have, and adds it as it comes."""
    missing = log.missing(asks)
    for num_done, reply in enumerate(respondent.replies(missing, sampling), start=1):
        log.add(reply)
        if progress:
            progress(num_done, len(missing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Rows for a file of conversations, and why replies are not among them.

    rows      in the order of the asks
    left_out  reason → number: failed, cut off, empty, or the verdict
    failures  reason → number, of those that failed
    outcomes  verdicts of all replies that came, where they were judged
    """

    rows: list[dict[str, Any]]
    left_out: Counter[str]
    failures: Counter[str]
    outcomes: Counter[str]


def choose(
    asks: Seq[Ask],
    log: ResponseLog,
    facts: Mapping[str, Any],
    *,
    verifier: Verifier | None = None,
    keep: Keep = "all",
    progress: Progress | None = None,
) -> Chosen:
    """Conversations of the replies in the log.

    facts     recorded in each row: the model's name and its sampling
    verifier  judges every reply; its verdict is recorded in the row
    keep      `correct` leaves out what the verifier does not find correct, also what it failed on

    Failed, empty and cut-off replies are left out in any case: to imitate a cut text is to learn to stop there.
    """
    answered = [(problem, sample, reply) for problem, sample in asks if (reply := log.find(problem.id, sample))]
    failures = Counter(log.failure(problem.id, sample) for problem, sample in log.missing(asks))
    items = [(problem, reply.text, reply.finish) for problem, _, reply in answered]
    verdicts: Seq[Any] = verify_all(verifier, items, progress) if verifier else [None] * len(items)
    rows, left_out = [], Counter({"failed": failures.total()})
    for (problem, sample, reply), verdict in zip(answered, verdicts, strict=True):
        reason = _reason_against(reply, None if verdict is None or keep == "all" else verdict.outcome.value)
        if reason:
            left_out[reason] += 1
            continue
        row: dict[str, Any] = {"id": f"{problem.id}/{sample}", "messages": _messages(problem, reply)}
        row |= {"problem": problem.id, "sample": sample, **facts}
        if verdict is not None:
            row["verdict"] = {name: getattr(verdict, name) for name in ("outcome", "score", "extracted", "verifier")}
        rows.append(row)
    outcomes = Counter(verdict.outcome.value for verdict in verdicts if verdict is not None)
    return Chosen(rows=rows, left_out=+left_out, failures=failures, outcomes=outcomes)


def write_rows(path: Path, rows: Seq[Mapping[str, Any]]) -> None:
    """Writes JSON lines; the file is replaced whole."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text("".join(map(_line, rows)), "utf-8")
    draft.replace(path)


def asks_of(problems: Seq[Problem], num_samples: int) -> Iterator[Ask]:
    """Every sample of every problem, problem by problem."""
    return ((problem, sample) for problem in problems for sample in range(num_samples))


def _reason_against(reply: Reply, outcome: str | None) -> str:
    """Why a reply is no text to imitate; empty if it is one."""
    if reply.finish is Finish.LENGTH:
        return "cut off"
    if not reply.text.strip():
        return "empty"
    return "" if outcome in (None, "correct") else f"judged {outcome}"


def _messages(problem: Problem, reply: Reply) -> list[dict[str, str]]:
    asked = [{"role": message.role, "content": message.content} for message in problem.messages]
    return [*asked, {"role": "assistant", "content": reply.text}]


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _reply(line: str, place: str) -> Reply:
    row = _object(line, place)
    try:
        return Reply(**row | {"finish": Finish(row["finish"])})
    except (ValueError, TypeError, KeyError) as error:
        raise _no_reply(line, place) from error


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _no_reply(line, place) from error
    if not isinstance(row, dict):
        raise _no_reply(line, place)
    return row


def _no_reply(line: str, place: str) -> DataError:
    return DataError(
        where=place,
        given=line[:120],
        expected="a line of a file of replies",
        fix="Remove the line, and what it held is asked again; choose another --out if this is another file.",
    )


def _require_same(path: Path, stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for name in sorted(stored.keys() | asked.keys()):
        if stored.get(name) != asked.get(name):
            raise InputError(
                where=str(path),
                given=f"replies with {name} = {stored.get(name)!r:.200}",
                expected=f"{name} = {asked.get(name)!r:.200}, as asked now",
                fix="Ask as before, choose another --out, or remove the file.",
            )
