"""Processes that judge answers and can be killed: the only safe way to run sympy and its like on what a model wrote.

A worker reads one JSON line a question on its standard input and writes one JSON line an answer. A question that takes
more than its limit of processor time ends the process (the operating system sees to it, whatever the code is stuck in),
and the next question gets a new one. Processor time, not time on the wall: a busy machine must not change a verdict.

The limit begins when a worker takes the question. Time spent waiting for a free worker is not in it, for the same
reason; it is bounded, since each of the n questions ahead holds one of the w workers for at most WALL_PER_CPU times its
limit on the wall: ⌈n / w⌉ · WALL_PER_CPU · limit. Starting a worker anew (START_SECONDS at most) is not in it either.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lydian.errors import VerifierError
from lydian.verifiers.math.policy import Policy

START_SECONDS = 120.0
"""Limit on starting a worker, imports included."""

WALL_PER_CPU = 10.0
"""A worker that sleeps or starves is killed after this multiple of its limit on the wall clock."""

MEMORY_BYTES = 4 * 2**30


MATH = "lydian.verifiers.math.equality:prepare"
"""What a worker does, as module:function. The function prepares the process and returns what answers a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a worker said: equal, not equal, or (None) nothing within its limits; and why."""

    is_equal: bool | None
    reason: str


class WorkerPool:
    """At most `num_workers` processes, started when needed; `ask` and `compare` may be called from any thread.

    duty  what the workers do, such as MATH

    Raises VerifierError if a worker cannot be started at all.
    """

    def __init__(self, num_workers: int, duty: str = MATH) -> None:
        self._duty = duty
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
            "policy": (policy or Policy()).settings(),
            "is_percent_asked": is_percent_asked,
        }
        answer = self.ask(question, cpu_seconds)
        if "fault" in answer:
            return Comparison(is_equal=None, reason=answer["fault"])
        return Comparison(is_equal=answer["is_equal"], reason=answer["reason"])

    def ask(self, question: Mapping[str, Any], cpu_seconds: float) -> dict[str, Any]:
        """A worker's answer to a question that JSON can hold; {"fault": why} if it had none within its limits."""
        worker, answer = self._free.get(), None
        try:
            worker = worker or _Worker(self._duty)
            self._alive.add(worker)
            answer = worker.ask({**question, "cpu_seconds": cpu_seconds}, cpu_seconds)
        finally:
            if worker is not None and answer is None:  # it died over the question, or may still owe an answer
                worker.kill()
                self._alive.discard(worker)
            self._free.put(None if answer is None else worker)
        return {"fault": f"no verdict within {cpu_seconds:g} s of processor time"} if answer is None else answer

    def close(self) -> None:
        """Ends all workers."""
        for worker in list(self._alive):
            worker.kill()


class _Worker:
    def __init__(self, duty: str) -> None:
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from lydian.verifiers.worker import serve; serve({duty!r})"],
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
                expected=f"a Python process that can import what {duty} needs",
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


_pools: dict[str, WorkerPool] = {}
_pool_lock = threading.Lock()


def num_workers() -> int:
    """How many workers the shared pool has: one a core, at most 8."""
    return min(8, os.cpu_count() or 1)


def shared_pool(duty: str = MATH) -> WorkerPool:
    """The pool of this process for a duty; a forked child gets its own."""
    with _pool_lock:
        if duty not in _pools:
            _pools[duty] = WorkerPool(num_workers(), duty)
            atexit.register(_pools[duty].close)
        return _pools[duty]


def _forget_pools() -> None:
    global _pool_lock
    _pools.clear()
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def serve(duty: str) -> None:
    """The worker's loop, until its standard input ends."""
    lines, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not be taken for a verdict

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    try:
        module, _, function = duty.partition(":")
        answer = getattr(importlib.import_module(module), function)()
    except Exception:  # noqa: BLE001  the process boundary: the parent raises it
        say({"failure": traceback.format_exc(limit=-1)})
        return
    _limit_memory()
    say({"ready": True})
    for line in lines:
        question = json.loads(line)
        _limit_processor_time(question["cpu_seconds"])
        try:
            message = answer(question)
        except (MemoryError, RecursionError) as error:
            say({"fault": f"{type(error).__name__} in the comparison"})
        except Exception as error:  # noqa: BLE001  the process boundary: recorded as a failed verdict
            say({"fault": f"the comparison broke: {type(error).__name__}: {error}"[:200]})
        else:
            say(message)
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
