"""What runs inside the sandbox: a script for a fresh interpreter, and the plain data that it and its parent exchange.

The script gets two pipes, puts on the layers it is told to, says so, and only then runs code of others. It stands on
the standard library alone, since the interpreter that runs it sees nothing else, and imports little of that: most of
the time of a short program is the start of its interpreter.

The parent, which is trusted, writes with marshal. The child, which is not, writes JSON that only `loads` reads.
"""

from __future__ import annotations

import builtins
import io
import marshal
import os
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False  # typing's own would load typing, which takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

MAX_DEPTH = 200
"""Data nested deeper than this is opaque."""


class NotPlain(Exception):
    """A value is not made of None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict."""


class Opaque:
    """Stands for a value that is no plain data. Equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


def encode(value: object, *, is_strict: bool = False, depth: int = 0) -> Any:
    """The value as JSON types, its exact type kept: numbers and containers that JSON lacks are tagged objects.

    A subclass of a plain type counts as that type, read through the type's own methods, so that nothing which the
    subclass redefines is asked. Anything else is `{"o": type name}`; with `is_strict` it raises NotPlain.

    >>> encode([1, (True, 0.5)])
    [1, {'t': [True, {'f': '0x1.0000000000000p-1'}]}]
    """
    kind = next((kind for kind in type(value).__mro__ if kind in _ENCODERS), None)
    if kind is None or depth > MAX_DEPTH:
        if is_strict:
            raise NotPlain(f"a {type(value).__name__} is no plain data")
        return {"o": str(type(value).__name__)[:80]}

    def inner(item: object) -> Any:
        return encode(item, is_strict=is_strict, depth=depth + 1)

    return _ENCODERS[kind](value, inner)


def decode(wire: Any) -> Any:
    """The value that `encode` was given. Raises ValueError or RecursionError for what `encode` never writes.

    >>> decode(encode({(1, 2): {3.5}}))
    {(1, 2): {3.5}}
    """
    if wire is None or isinstance(wire, (bool, int, str)):
        return wire
    if isinstance(wire, list):
        return [decode(item) for item in wire]
    if not isinstance(wire, dict) or len(wire) != 1:
        raise ValueError(f"no plain data: {type(wire).__name__}")
    ((tag, content),) = wire.items()
    if tag not in _DECODERS:
        raise ValueError(f"no plain data: tag {tag!r:.20}")
    return _DECODERS[tag](content)


def loads(line: bytes) -> Any:
    """Strict JSON: ASCII, no floats, no NaN, no repeated keys. Raises ValueError or RecursionError."""
    import json  # here, since the child never needs it

    return json.loads(line.decode("ascii"), parse_float=_refuse, parse_constant=_refuse, object_pairs_hook=_pairs)


def dumps(wire: Any) -> str:
    """What `encode` gives, as JSON in ASCII.

    >>> dumps(encode({"é": (1, None)}))
    '{"d":[["\\\\u00e9",{"t":[1,null]}]]}'
    """
    if isinstance(wire, str):
        return encode_basestring_ascii(wire)
    if isinstance(wire, list):
        return f"[{','.join(map(dumps, wire))}]"
    if isinstance(wire, dict):
        return f"{{{','.join(f'{encode_basestring_ascii(key)}:{dumps(item)}' for key, item in wire.items())}}}"
    return "null" if wire is None else str(wire).lower()


def _refuse(text: str) -> Any:
    raise ValueError(f"no plain data: {text:.20}")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _int(value: Any, inner: Callable[[object], Any]) -> Any:
    number = int.__add__(value, 0)
    return number if abs(number) < 2**53 else {"i": hex(number)}


_ENCODERS: dict[type, Callable[[Any, Callable[[object], Any]], Any]] = {
    type(None): lambda value, inner: None,
    bool: lambda value, inner: value,
    int: _int,
    float: lambda value, inner: {"f": float.hex(value)},
    complex: lambda value, inner: {"c": [float.hex(value.real), float.hex(value.imag)]},
    str: lambda value, inner: str.__str__(value),
    bytes: lambda value, inner: {"b": bytes.hex(value)},
    list: lambda value, inner: [inner(item) for item in list.__iter__(value)],
    tuple: lambda value, inner: {"t": [inner(item) for item in tuple.__iter__(value)]},
    set: lambda value, inner: {"s": [inner(item) for item in set.__iter__(value)]},
    frozenset: lambda value, inner: {"z": [inner(item) for item in frozenset.__iter__(value)]},
    dict: lambda value, inner: {"d": [[inner(key), inner(item)] for key, item in dict.items(value)]},
}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "i": lambda content: int(content, 16),
    "f": float.fromhex,
    "c": lambda content: complex(*map(float.fromhex, content)),
    "b": bytes.fromhex,
    "t": lambda content: tuple(decode(item) for item in content),
    "s": lambda content: {decode(item) for item in content},
    "z": lambda content: frozenset(decode(item) for item in content),
    "d": lambda content: {decode(key): decode(item) for key, item in content},
    "o": lambda content: Opaque(),
}


class Pipes:
    """The child's two pipes: marshalled requests in, a line of JSON for each reply out."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self.requests, self.replies = requests, replies

    def receive(self) -> Any:
        """The next request, or None at the end."""
        try:
            return marshal.load(self.requests)
        except EOFError:
            return None

    def send(self, message: dict[str, Any]) -> None:
        self.replies.write(dumps(message).encode("ascii") + b"\n")
        self.replies.flush()


def run_program(source: str, pipes: Pipes) -> None:
    """Runs the source as `__main__` with the real standard streams; the pipes are closed first."""
    pipes.requests.close()
    pipes.replies.close()
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    exec(compile(source, "main.py", "exec"), module.__dict__)


def serve_calls(source: str, entry_point: str, pipes: Pipes) -> None:
    """Loads the source, then answers each request `{"args", "kwargs"}` with the encoded value or the error."""
    module = type(sys)("candidate")
    sys.modules["candidate"] = module
    sys.stdin = io.StringIO()
    try:
        exec(compile(source, "candidate.py", "exec"), module.__dict__)
        function = _find(module.__dict__, entry_point)
    except BaseException as error:  # noqa: BLE001 (the boundary: whatever the candidate raises becomes its result)
        pipes.send(_error(error))
        return
    pipes.send({"loaded": True})
    while (request := pipes.receive()) is not None:
        try:
            value = encode(function(*decode(request["args"]), **decode(request["kwargs"])))
        except BaseException as error:  # noqa: BLE001 (as above)
            pipes.send(_error(error))
        else:
            pipes.send({"value": value})


def _find(names: dict[str, Any], entry_point: str) -> Callable[..., Any]:
    if entry_point in names:
        return names[entry_point]
    if "Solution" in names:
        return getattr(names["Solution"](), entry_point)
    raise NameError(f"{entry_point} is not defined")


def _error(error: BaseException) -> dict[str, str]:
    kind = type(error).__name__
    try:
        text = " ".join(str(error).split())[:200]
    except BaseException:  # noqa: BLE001 (a candidate's exception may fail to print)
        text = "(no text)"
    return {"error": kind, "text": text}


def run_tests(setup: str, tests: str, entry_point: str, pipes: Pipes) -> None:
    """Runs trusted tests against a candidate that lives in another process; each call goes through the parent.

    The last message says `passed`, `failed` (an assertion, or anything raised once the candidate has answered) or
    `broken` (the tests fail by themselves, or never call).
    """
    num_calls = 0

    def candidate(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        pipes.send({"args": encode(list(args), is_strict=True), "kwargs": encode(kwargs, is_strict=True)})
        reply = pipes.receive()
        num_calls += 1
        if "error" in reply:
            raise _exception(reply["error"])(reply["text"])
        return decode(reply["value"])

    names: dict[str, Any] = {"__name__": "tests"}
    outcome, reason = "passed", ""
    try:
        exec(compile(setup, "setup.py", "exec"), names)
        names |= {"candidate": candidate, entry_point: candidate}
        exec(compile(tests, "tests.py", "exec"), names)
        if "check" in names:
            names["check"](candidate)
    except NotPlain as error:
        outcome, reason = "broken", str(error)
    except Exception as error:  # noqa: BLE001 (the boundary: the error is the result of the tests)
        outcome = "failed" if num_calls else "broken"
        reason = f"{type(error).__name__}: {error}"
    if outcome == "passed" and not num_calls:
        outcome, reason = "broken", "the tests never call the candidate"
    pipes.send({"tests": outcome, "reason": " ".join(reason.split())[:200]})


def _exception(name: str) -> type[Exception]:
    kind = getattr(builtins, name, None)
    is_usable = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
    return kind if is_usable else RuntimeError  # type: ignore[return-value]


def main(requests: BinaryIO, replies: BinaryIO, put_on: Callable[..., dict[str, str]]) -> None:
    """Puts on the layers, reports them, and runs what the first request asks for."""
    pipes = Pipes(requests, replies)
    config = pipes.receive()
    os.chdir(config["scratch"])
    pipes.send({"layers": put_on(config["layers"], config)})
    if config["kind"] == "program":
        run_program(config["source"], pipes)
    elif config["kind"] == "calls":
        serve_calls(config["source"], config["entry_point"], pipes)
    else:
        run_tests(config["setup"], config["source"], config["entry_point"], pipes)
