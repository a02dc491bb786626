"""Processes that compare answers and can be killed: the only safe way to run sympy on what a model wrote.

A worker reads one JSON line a question on its standard input and writes one JSON line a verdict. A question that takes
more than its limit of processor time ends the process (the operating system sees to it, whatever the code is stuck in),
and the next question gets a new one. Processor time, not time on the wall: a busy machine must not change a verdict.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from lydian.errors import VerifierError
from lydian.verifiers.policy import Policy

START_SECONDS = 120.0
"""Limit on starting a worker, imports included."""

WALL_PER_CPU = 10.0
"""A worker that sleeps or starves is killed after this multiple of its limit on the wall clock."""

MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a worker said: equal, not equal, or (None) nothing within its limits; and why."""

    is_equal: bool | None
    reason: str


class WorkerPool:
    """At most `num_workers` processes, started when needed; `compare` may be called from any thread.

    Raises VerifierError if a worker cannot be started at all.
    """

    def __init__(self, num_workers: int) -> None:
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # the last used first: others need not start
        for _ in range(num_workers):
            self._free.put(None)
        self._alive: set[_Worker] = set()

    def compare(
        self,
        gold: str,
        prediction: str,
        *,
        cpu_seconds: float,
        policy: Policy | None = None,
        is_percent_asked: bool = False,
    ) -> Comparison:
        """Whether the answers are equal; is_equal is None if the worker did not live to say."""
        question = {
            "gold": gold,
            "prediction": prediction,
            "cpu_seconds": cpu_seconds,
            "policy": (policy or Policy()).settings(),
            "is_percent_asked": is_percent_asked,
        }
        worker, answer = self._free.get(), None
        try:
            worker = worker or _Worker()
            self._alive.add(worker)
            answer = worker.ask(question, cpu_seconds)
        finally:
            if worker is not None and answer is None:  # it died over the question, or may still owe an answer
                worker.kill()
                self._alive.discard(worker)
            self._free.put(None if answer is None else worker)
        if answer is None:
            return Comparison(is_equal=None, reason=f"no verdict within {cpu_seconds:g} s of processor time")
        return Comparison(is_equal=answer["is_equal"], reason=answer["reason"])

    def close(self) -> None:
        """Ends all workers."""
        for worker in list(self._alive):
            worker.kill()


class _Worker:
    def __init__(self) -> None:
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from lydian.verifiers.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the parent to handle
        )
        ready = self._read_line(START_SECONDS)
        if ready is None or "failure" in ready:
            self.kill()
            raise VerifierError(
                where="starting a worker that compares answers",
                given=ready["failure"] if ready else f"no process within {START_SECONDS:g} s",
                expected="a Python process that can import math-verify and sympy",
                fix="Run `lydian doctor`; install the missing package.",
            )

    def ask(self, question: dict[str, Any], cpu_seconds: float) -> dict[str, Any] | None:
        """The answer, or None if the process ended over the question or was killed for it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read_line(cpu_seconds * WALL_PER_CPU)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_line(self, wall_seconds: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        killer = threading.Timer(wall_seconds, self._process.kill)
        killer.daemon = True
        killer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            killer.cancel()
        return json.loads(line) if line.endswith(b"\n") else None


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def num_workers() -> int:
    """How many workers the shared pool has: one a core, at most 8."""
    return min(8, os.cpu_count() or 1)


def shared_pool() -> WorkerPool:
    """The pool of this process; a forked child gets its own."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = WorkerPool(num_workers())
            atexit.register(_pool.close)
        return _pool


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def serve() -> None:
    """The worker's loop, until its standard input ends."""
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a verdict

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    try:
        from lydian.verifiers.bounds import TooLarge
        from lydian.verifiers.equality import compare, load_libraries

        load_libraries()
    except Exception:  # noqa: BLE001  the process boundary: the parent raises it
        say({"failure": traceback.format_exc(limit=-1)})
        return
    _limit_memory()
    say({"ready": True})
    for line in lines:
        question = json.loads(line)
        _limit_processor_time(question["cpu_seconds"])
        try:
            policy = Policy(**question["policy"])
            is_equal, reason = compare(
                question["gold"], question["prediction"], policy, is_percent_asked=question["is_percent_asked"]
            )
        except TooLarge as error:
            say({"is_equal": None, "reason": f"too large to compute with: {error}"})
        except (MemoryError, RecursionError) as error:
            say({"is_equal": None, "reason": f"{type(error).__name__} in the comparison"})
        except Exception as error:  # noqa: BLE001  the process boundary: recorded as a failed verdict
            say({"is_equal": None, "reason": f"the comparison broke: {type(error).__name__}: {error}"[:200]})
        else:
            say({"is_equal": is_equal, "reason": reason})
        _limit_processor_time(0)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):  # not every system has it; the processor-time limit holds anyway
        return


def _limit_processor_time(seconds: float) -> None:
    """Ends this process by SIGPROF, whose default action cannot be delayed by Python code; 0 lifts the limit."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
