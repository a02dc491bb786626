"""Which layers of the sandbox work on this machine, tried out once in each process, and the least that is asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from lydian.errors import VerifierError
from lydian.verifiers.code.child import loads
from lydian.verifiers.code.sandbox import Ended, Limits, SandboxBroken, Sandboxed

LAYERS = ("limits", "namespaces", "user", "landlock", "seccomp")
"""Every layer there is; `lydian.verifiers.code.layers` says what each does."""

DEFAULT_MINIMUM = ("limits", "landlock", "seccomp")
"""Without these nothing is run, unless a setting asks for less."""

_PROBE = """
def probe(paths):
    import os, resource, socket, threading, json, random, decimal
    def is_refused(act):
        try:
            act()
        except OSError:
            return True
        return False
    def write(path):
        with open(path, "a"):
            pass
    def connect():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(("192.0.2.1", 9))
    thread = threading.Thread(target=len, args=("",))
    thread.start(); thread.join()
    write("probe"); os.remove("probe")
    return {
        "limits": resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY,
        "namespaces": is_refused(connect),
        "user": os.getuid() != 0,
        "landlock": is_refused(lambda: open(paths[0]).close()) and is_refused(lambda: write(paths[1])),
        "seccomp": is_refused(connect) and is_refused(lambda: os.fork() or os._exit(0)),
    }
"""

_probe_lock = Lock()
_probed: dict[str, str] = {}


def probe() -> dict[str, str]:
    """Each layer, with an empty text where it works on this machine or the reason why not. Looked up once a process.

    A layer works if it can be put on, an ordinary program still runs under it, and what it forbids is refused.
    Raises VerifierError where no sandboxed process runs at all.
    """
    with _probe_lock:
        if not _probed:
            states = _try_out(LAYERS)
            working = tuple(name for name in LAYERS if not states[name])
            if any(states.values()):  # a layer may have seemed to work thanks to one that does not
                states |= {name: state for name, state in _try_out(working).items() if state}
            _probed.update(states)
        return dict(_probed)


def _try_out(layers: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # so that it is the layer, not the folder's mode, which refuses
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        secret.chmod(0o666)
        call = {"args": [[str(secret), f"{folder}/new"]], "kwargs": {"d": []}}
        config = {"kind": "calls", "source": _PROBE, "entry_point": "probe"}
        try:
            with Sandboxed(config, limits=Limits(), layers=layers, is_tolerant=True) as process:
                process.send(call)
                loads(process.receive())
                reply = loads(process.receive())
                works = dict(reply["value"]["d"])
                states = process.states
        except (SandboxBroken, Ended, ValueError, KeyError, TypeError) as error:
            raise VerifierError(
                where="sandbox",
                given=f"a trial program that did not run: {type(error).__name__}: {error}",
                expected="it to run",
                fix="Run on Linux with Python's standard library readable; `lydian doctor` says what works.",
            ) from error
    return {name: states[name] or ("" if works[name] else "it was put on but does not hold") for name in layers}


def working_layers(minimum: Sequence[str] = DEFAULT_MINIMUM) -> tuple[str, ...]:
    """The layers that work here. Raises VerifierError where one of the minimum is not among them.

    minimum  names out of `LAYERS`
    """
    unknown = [name for name in minimum if name not in LAYERS]
    if unknown:
        raise VerifierError(
            where="code.minimum", given=repr(unknown), expected=f"names out of {LAYERS}", fix="Correct the setting."
        )
    states = probe()
    missing = {name: states[name] for name in minimum if states[name]}
    if missing:
        raise VerifierError(
            where="sandbox",
            given=f"a machine on which these layers do not work: {missing}",
            expected=f"at least {', '.join(minimum)}",
            fix="Grade code on a machine that has them, or name fewer in the verifier's `minimum` at your own risk.",
        )
    return tuple(name for name in LAYERS if not states[name])
