"""The core of `lydian grade`: answers as JSON lines in, verdicts out, one for one and in order."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import LydianError
from lydian.verifiers.verifier import Verifier, bare_problem

AHEAD = 8
"""Lines read before their turn, for each call that a verifier serves at once."""


def grade_lines(lines: Iterable[str], verifier: Verifier) -> Iterator[dict[str, Any]]:
    """For each line `{"gold", "prediction"}` one `{"id", "outcome", "extracted", "reason"}`, in order.

    A line may also have `id` (given back), `question` (some rules depend on it) and `finish` ("stop", "length",
    "abort"); other keys are ignored, blank lines skipped. A line that cannot be graded gives the outcome "failed" and
    an `error` that says why; the lines after it are graded.

    >>> from lydian.verifiers import make_verifier
    >>> next(grade_lines(['{"id": 7, "gold": "4", "prediction": "It is 4."}'], make_verifier("numeric")))
    {'id': 7, 'outcome': 'correct', 'extracted': '4', 'reason': '4 = 4'}
    """
    num_threads = getattr(verifier, "num_threads", 1)
    if num_threads <= 1:
        yield from (_grade(number, line, verifier) for number, line in enumerate(lines, start=1) if line.strip())
        return
    # Lines are read by a thread of their own: a caller that waits for an answer before it writes on gets it.
    begun: queue.Queue[Future[dict[str, Any]] | None] = queue.Queue(maxsize=AHEAD * num_threads)

    def read() -> None:
        with ThreadPoolExecutor(num_threads) as pool:
            try:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        begun.put(pool.submit(_grade, number, line, verifier))
                begun.put(None)
            except BaseException as error:  # noqa: BLE001  the thread's boundary: it is raised where results are taken
                failed: Future[dict[str, Any]] = Future()
                failed.set_exception(error)
                begun.put(failed)

    threading.Thread(target=read, daemon=True).start()
    while (future := begun.get()) is not None:
        yield future.result()


def _grade(number: int, line: str, verifier: Verifier) -> dict[str, Any]:
    row: Any = None
    try:
        row = json.loads(line)
        problem = bare_problem(_text(row, "gold"), question=_text(row, "question", default=""))
        finish = Finish(_text(row, "finish", default="stop"))
        verifier.check(problem)
        verdict = verifier.verify(problem, _text(row, "prediction"), finish)
    except (ValueError, LydianError, RecursionError) as error:
        identifier = row.get("id") if isinstance(row, dict) else None
        return _result(identifier, Outcome.FAILED, None, "not graded") | {"error": f"line {number}: {error}"}
    return _result(row.get("id"), verdict.outcome, verdict.extracted, verdict.reason)


def _result(identifier: Any, outcome: Outcome, extracted: str | None, reason: str) -> dict[str, Any]:
    return {"id": identifier, "outcome": outcome.value, "extracted": extracted, "reason": reason}


def _text(row: Any, key: str, *, default: str | None = None) -> str:
    """The field as text; a plain number is taken as written."""
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"field {key!r}: expected text or a number, got {json.dumps(value):.80}")
    return str(value)
