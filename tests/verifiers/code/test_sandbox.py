"""The sandbox: what each layer refuses, what ends a process, and what a machine without a layer is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lydian.verifiers.code import sandbox
from lydian.verifiers.code.child import encode, loads
from lydian.verifiers.code.probe import working_layers
from lydian.verifiers.code.sandbox import Ended, Limits, SandboxBroken, Sandboxed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")

PARENT_ONLY = ("limits",)
"""What is left on a machine whose kernel offers nothing: the parent's own measures must hold alone."""


def run(source: str, *, stdin: str = "", layers: tuple[str, ...] | None = None, **limits: Any) -> tuple[int, str, str]:
    """Exit code, standard output and the last line of standard error of a program."""
    config = {"kind": "program", "source": source}
    used = working_layers() if layers is None else layers
    with Sandboxed(config, limits=Limits(**limits), layers=used, stdin=stdin.encode()) as process:
        code = process.wait()
        return code, process.output["stdout"].decode(), process.error_line()


def error_of(source: str, **settings: Any) -> str:
    return run(source, **settings)[2]


def test_a_program_reads_writes_and_exits() -> None:
    assert run("import sys\nprint(input()[::-1]); sys.exit(3)", stdin="abc\n") == (3, "cba\n", "")


@pytest.mark.parametrize("idiom", ["open(0).read()", "open('/dev/stdin').read()", "__import__('sys').stdin.read()"])
def test_standard_input_is_real(idiom: str) -> None:
    assert run(f"print(len({idiom}))", stdin="x" * 300_000)[1] == "300000\n"


def test_the_standard_library_works_and_nothing_else_is_there() -> None:
    source = "import json, random, decimal, collections, threading, datetime, hashlib, heapq, re, typing\nprint(1)"
    assert run(source)[1] == "1\n"
    assert "ModuleNotFoundError" in error_of("import lydian")


def test_the_environment_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sets LC_CTYPE itself where no language is set."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    names = run("import os; print(*sorted(os.environ))")[1].split()
    assert set(names) - {"LC_CTYPE"} == {"HOME", "PYTHONHASHSEED", "TMPDIR"}


def test_sets_of_text_come_in_the_same_order_each_time() -> None:
    outputs = {run("print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))")[1] for _ in range(3)}
    assert len(outputs) == 1


REFUSED = {
    "socket": "import socket; socket.socket()",
    "fork": "import os; os.fork()",
    "spawn": "import subprocess; subprocess.run(['/bin/true'])",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "kill": "import os; os.kill(os.getppid(), 0)",
    "session": "import os; os.setsid()",
    "read": "open('/etc/passwd')",
    "read a home": "import os; os.listdir('/root')",
    "read other processes": "import os; open(f'/proc/{os.getppid()}/environ', 'rb')",
    "write": "open('/tmp/lydian-escape', 'w')",
    "write beside": "import os; open(os.path.dirname(__import__('json').__file__) + '/x.py', 'w')",
    "mode": "import os; open('mine', 'w'); os.chmod('mine', 0o4777)",
    "limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "link": "import os; os.symlink('/etc', 'etc')",
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_kernel_refuses(name: str) -> None:
    code, _, error = run(REFUSED[name])
    assert code == 1
    assert error.startswith(("PermissionError", "ValueError: not allowed")), error
    assert not Path("/tmp/lydian-escape").exists()


def test_what_seccomp_refuses_is_allowed_without_it() -> None:
    """So the tests above see the layer and not something else."""
    assert run("import os; os.fork() or os._exit(0); print(1)", layers=PARENT_ONLY)[1] == "1\n"
    assert run("open('/etc/passwd'); print(1)", layers=PARENT_ONLY)[1] == "1\n"


def test_scratch_can_be_written_and_is_gone_afterwards() -> None:
    source = "import os, tempfile\nf = tempfile.NamedTemporaryFile(); f.write(b'x'); f.flush()\nprint(os.getcwd())"
    code, folder, _ = run(source)
    assert code == 0
    assert not Path(folder.strip()).exists()


@pytest.mark.parametrize("layers", [None, PARENT_ONLY])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("while True: pass", "timeout"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "timeout"),
        ("import time; time.sleep(100)", "timeout"),
        ("while True: print('x' * 1000)", "output limit"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output limit"),
        (
            "n = 0\nwhile True:\n    n += 1\n    with open(f'f{n}', 'wb') as f: f.write(bytes(4 << 20))",
            "scratch limit",
        ),
    ],
)
def test_what_the_parent_ends(source: str, reason: str, layers: tuple[str, ...] | None) -> None:
    started = time.monotonic()
    with pytest.raises(Ended, match=reason):
        run(source, layers=layers, seconds=2.0, output_kib=100)
    assert time.monotonic() - started < 30


def test_memory_and_file_size_are_limited() -> None:
    assert error_of("x = bytearray(1 << 30)", memory_mib=256) == "MemoryError"
    assert "File too large" in error_of("open('f', 'wb').write(bytes(5 << 20))", scratch_mib=4)


def test_deep_recursion_has_the_stack_for_it() -> None:
    source = "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and f(n - 1)\nprint(f(20000))"
    assert run(source)[1] == "0\n"


def test_a_forked_child_that_keeps_the_pipes_open_holds_nobody_up_and_dies() -> None:
    source = "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(1000)\nprint(pid)"
    started = time.monotonic()
    code, output, _ = run(source, layers=PARENT_ONLY, seconds=60.0)
    assert (code, time.monotonic() - started < 30) == (0, True)
    for _ in range(100):
        try:
            state = Path(f"/proc/{int(output)}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child lives on")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a process its own user")
def test_a_fork_bomb_ends_even_without_seccomp() -> None:
    source = "import os\nn = 0\nwhile True:\n    try:\n        os.fork()\n    except OSError: n += 1"
    with pytest.raises(Ended):
        run(source, layers=("limits", "user", "landlock"), seconds=2.0)


def test_a_layer_that_stops_working_breaks_the_sandbox_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "readable_paths", lambda: ["/dev/null/no folder"])
    with pytest.raises(SandboxBroken, match="landlock"):
        run("print(1)")


@pytest.mark.parametrize(
    "line", [b"1.5", b"NaN", b'{"a":1,"a":2}', "é".encode(), b"[" * 100_000, b"1" * 5000, b"\xff", b""]
)
def test_the_parent_reads_strict_json_only(line: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        loads(line)


def test_a_subclass_is_read_through_its_own_type() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __add__(self, other: int) -> int:
            return 42

    class Many(list[int]):
        def __iter__(self) -> Any:
            while True:
                yield 42

    assert encode(Liar(3)) == 3
    assert encode(Many([1])) == [1]
    assert encode(Ellipsis) == {"o": "ellipsis"}
