"""Running code of others in a fresh, limited process.

A sandboxed process is a new interpreter without site packages and with an empty environment, in its own process group
and its own scratch folder. It puts on the layers of `lydian.verifiers.code.layers` before it runs what it is given.
The parent reads at most a fixed number of bytes, never waits past a deadline, and kills the whole group at the end,
however it ended. None of this is a defence against a fault in the kernel.

Without the `seccomp` layer a process may leave its group and outlive it; without `landlock` it may read and write what
its user may. `lydian.verifiers.code.probe` says what works
here.
"""

from __future__ import annotations

import itertools
import marshal
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lydian.errors import VerifierError
from lydian.verifiers.code.child import loads

_START_SECONDS = 60.0
_TICK_SECONDS = 0.1
_CHUNK = 1 << 16
_USERS = range(61184, 65520)  # the numbers that systemd keeps for transient users
_next_user = itertools.cycle(_USERS[os.getpid() % len(_USERS) :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandboxed process may use.

    seconds        wall-clock time, from the moment its layers are on
    memory_mib     address space
    output_kib     everything that the parent reads from it
    scratch_mib    all files in its scratch folder together, and each of them
    threads        threads at once (holds where the `user` layer does)
    """

    seconds: float = 10.0
    memory_mib: int = 512
    output_kib: int = 1024
    scratch_mib: int = 16
    threads: int = 64

    def __post_init__(self) -> None:
        if not (0 < self.seconds <= 3600 and self.memory_mib >= 64 and self.output_kib >= 1 and self.scratch_mib >= 1):
            raise VerifierError(
                where="sandbox limits",
                given=repr(self),
                expected="0 < seconds ≤ 3600, memory_mib ≥ 64, output_kib ≥ 1, scratch_mib ≥ 1",
                fix="Correct the setting.",
            )


class Ended(Exception):
    """A sandboxed process did not give what was waited for: `timeout`, `output limit`, `scratch limit` or `ended`."""


class SandboxBroken(Exception):
    """The sandbox itself failed before any code of others ran."""


class Sandboxed:
    """One sandboxed process; a context manager that kills its whole group and removes its scratch at the end.

    config        what `child.main` reads: kind, source and what the kind needs
    layers        which to put on; each must work, or SandboxBroken is raised
    stdin         what the process reads on standard input; None: nothing. Only then is its output kept.
    is_tolerant   layers that do not work are recorded in `states` instead
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        limits: Limits,
        layers: Sequence[str],
        stdin: bytes | None = None,
        is_tolerant: bool = False,
    ) -> None:
        self.limits = limits
        self.output = {"stdout": bytearray(), "stderr": bytearray(), "reply": bytearray()}
        self.states: dict[str, str] = {}
        self._num_read = 0
        self._pending: dict[int, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._user = next(_next_user)
        self._scratch = tempfile.mkdtemp(prefix="lydian-code-")
        try:
            self._process = self._start(stdin)
            self._deadline = time.monotonic() + _START_SECONDS
            self.send(config | self._settings(layers))
            self._wait_for_layers(is_tolerant)
            self._deadline = time.monotonic() + limits.seconds
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Sandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message; it is written while something is waited for."""
        self._queue(self._request, marshal.dumps(message))

    def receive(self) -> bytes:
        """The next line that the process replies. Raises Ended."""
        reply = self.output["reply"]
        start = 0
        while (end := reply.find(b"\n", start)) < 0:
            start = len(reply)
            if not self._is_open("reply"):
                raise Ended("ended")
            self._step()
        line = bytes(reply[:end])
        del reply[: end + 1]
        return line

    def wait(self) -> int:
        """Waits for the end and gives the exit code (negative: the signal). Raises Ended."""
        while (code := self._exit_code()) is None:
            self._step()
        is_open = True
        while is_open:  # what was written before the end is still in the pipes; children may hold them open for ever
            is_open = self._step(timeout=0.0)
        return code

    def close(self) -> None:
        """Kills the process and all in its group, and removes what it left. Safe to call twice."""
        process = getattr(self, "_process", None)
        if process is not None and process.returncode is None:
            # The group exists as long as its leader is not collected, so this can hit no stranger.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        self._selector.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _settings(self, layers: Sequence[str]) -> dict[str, Any]:
        return {
            "layers": list(layers),
            "scratch": self._scratch,
            "readable": readable_paths(),
            "user": self._user,
            "threads": self.limits.threads,
            "cpu_seconds": int(self.limits.seconds) + 1,
            "memory_bytes": self.limits.memory_mib << 20,
            "file_bytes": self.limits.scratch_mib << 20,
        }

    def _start(self, stdin: bytes | None) -> subprocess.Popen[bytes]:
        if os.getuid() == 0:
            os.chown(self._scratch, self._user, self._user)
        request_read, self._request = os.pipe()
        reply, reply_write = os.pipe()
        has_streams = stdin is not None
        stream = subprocess.PIPE if has_streams else subprocess.DEVNULL
        try:
            # -I without its deafness to PYTHONHASHSEED: the environment is empty but for that, so that sets come in
            # the same order each time.
            process = subprocess.Popen(
                [
                    _interpreter(),
                    "-s",
                    "-P",
                    "-S",
                    "-B",
                    "-X",
                    "utf8",
                    "-c",
                    _START,
                    str(request_read),
                    str(reply_write),
                ],
                stdin=stream,
                stdout=stream,
                stderr=stream,
                env={"PYTHONHASHSEED": "0", "TMPDIR": self._scratch, "HOME": self._scratch},
                pass_fds=(request_read, reply_write),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            os.close(self._request)
            os.close(reply)
            raise SandboxBroken(f"no process could be started: {error}") from error
        finally:
            os.close(request_read)
            os.close(reply_write)
        self._read_from("reply", reply)
        os.set_blocking(self._request, False)
        self._pending[self._request] = bytearray(_child_code())
        self._selector.register(self._request, selectors.EVENT_WRITE, "request")
        if process.stdin and process.stdout and process.stderr and stdin is not None:
            self._read_from("stdout", os.dup(process.stdout.fileno()))
            self._read_from("stderr", os.dup(process.stderr.fileno()))
            self._stdin = os.dup(process.stdin.fileno())
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()
            os.set_blocking(self._stdin, False)
            self._pending[self._stdin] = bytearray(stdin)
            self._selector.register(self._stdin, selectors.EVENT_WRITE, "stdin")
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, "exit")  # wakes `wait`
        return process

    def _read_from(self, name: str, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _wait_for_layers(self, is_tolerant: bool) -> None:
        try:
            self.states = loads(self.receive())["layers"]
        except (Ended, ValueError, KeyError) as error:
            raise SandboxBroken(f"it did not start: {error}; {self.error_line()}") from error
        broken = {name: state for name, state in self.states.items() if state}
        if broken and not is_tolerant:
            raise SandboxBroken(f"layers that worked before failed: {broken}")

    def error_line(self) -> str:
        """The last line that the process wrote on standard error."""
        lines = self.output["stderr"][-2000:].decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]

    def _exit_code(self) -> int | None:
        """The exit code once there is one, with the process left uncollected so that its group stays its own."""
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _is_open(self, name: str) -> bool:
        return any(key.data == name for key in self._selector.get_map().values())

    def _queue(self, descriptor: int, data: bytes) -> None:
        pending = self._pending.get(descriptor)
        if pending is None:
            return  # the process has closed this pipe; what it does not read it cannot answer
        if not pending and not self._is_registered(descriptor):
            self._selector.register(descriptor, selectors.EVENT_WRITE, "request")
        pending += data

    def _is_registered(self, descriptor: int) -> bool:
        return descriptor in self._selector.get_map()

    def _step(self, timeout: float = _TICK_SECONDS) -> bool:
        """Moves what can be moved. Returns whether anything was read. Raises Ended."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Ended("timeout")
        has_read = False
        for key, _ in self._selector.select(min(timeout, left)):
            if key.events & selectors.EVENT_WRITE:
                self._write(key.fd)
            elif key.data == "exit":
                self._drop(key.fd)
            else:
                has_read = self._read(key.fd, key.data) or has_read
        if self._scratch_bytes() > self.limits.scratch_mib << 20:
            raise Ended("scratch limit")
        return has_read

    def _write(self, descriptor: int) -> None:
        pending = self._pending[descriptor]
        try:
            written = os.write(descriptor, pending[:_CHUNK]) if pending else 0
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._drop(descriptor)
            return
        del pending[:written]
        if not pending and descriptor == self._request:
            self._selector.unregister(descriptor)
        elif not pending:
            self._drop(descriptor)  # end of standard input

    def _read(self, descriptor: int, name: str) -> bool:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._drop(descriptor)
            return False
        self._num_read += len(data)
        if self._num_read > self.limits.output_kib << 10:
            raise Ended("output limit")
        self.output[name] += data
        return True

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        self._pending.pop(descriptor, None)
        os.close(descriptor)

    def _scratch_bytes(self) -> int:
        total = 0
        for folder, _, files in os.walk(self._scratch):
            for name in files:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue  # removed since it was listed
        return total


_START = """
import marshal, os, sys
requests, replies = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb")
layers, child = {"__name__": "sandbox_layers"}, {"__name__": "code_child"}
exec(marshal.load(requests), layers)
exec(marshal.load(requests), child)
child["main"](requests, replies, layers["put_on"])
"""


@cache
def _child_code() -> bytes:
    """The two files that run inside, compiled once."""
    files = [Path(__file__).with_name(name) for name in ("layers.py", "child.py")]
    return b"".join(marshal.dumps(compile(file.read_bytes(), file.name, "exec")) for file in files)


def _interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(sys.executable)


def readable_paths() -> list[str]:
    """What a sandboxed process may read: the standard library, system libraries, time zones, sources of randomness."""
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("LIBDIR")]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"]
    return sorted({str(path) for path in library if path} | {*system, "/dev/urandom", "/dev/random", "/dev/zero"})
