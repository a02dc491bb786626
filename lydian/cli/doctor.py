"""`lydian doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

EXTRAS = {
    "math": ("math_verify", "math-verify", "the `math` verifier"),
    "gguf": ("gguf", "gguf", "`lydian fetch` and GGUF models"),
    "hub": ("datasets", "datasets", "data sets from the hub"),
    "quantised": ("bitsandbytes", "bitsandbytes", "a base in 4 bits under an adapter"),
    "reasoning": ("reasoning_gym", "reasoning-gym", "the `reasoning_gym` benchmark and verifier"),
}
"""Extra → module, package, what it is for."""

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at.

    status  ok; note, something is slower or less than it could be; broken, something needed does not work
    fix     what to do about it; empty when ok
    """

    name: str
    value: str
    status: Literal["ok", "note", "broken"] = "ok"
    fix: str = ""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """Say what this machine can do and what is missing.

    Exit code 1 if something needed is broken.
    """
    findings = [_examined(name, look) for name, look in LOOKS.items()]
    findings += [_extra(extra) for extra in EXTRAS]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        for finding in findings:
            typer.echo(f"{finding.status:<7} {finding.name:<14} {finding.value}")
            if finding.fix:
                typer.echo(f"{'':<7} {'':<14} → {finding.fix}")
    if any(finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


def _examined(name: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 (a broken installation can raise anything; it becomes the finding)
        fix = "Install it again: pip install --force-reinstall lydian."
        return Finding(name=name, value=f"{type(error).__name__}: {error}", status="broken", fix=fix)


def _python() -> Finding:
    return Finding(name="python", value=f"{sys.version.split()[0]} ({sys.executable})")


def _torch() -> Finding:
    import torch

    product = torch.ones(2, 3) @ torch.ones(3, 2)
    if product.tolist() != [[3.0, 3.0], [3.0, 3.0]]:
        return Finding(
            name="torch", value=f"1·1ᵀ gives {product.tolist()}", status="broken", fix="Install torch again."
        )
    return Finding(name="torch", value=f"{torch.__version__}, {torch.get_num_threads()} threads")


def _libraries() -> Finding:
    from importlib import import_module

    from lydian.recipes.machine import versions

    import_module("lydian.models.load")  # which imports both, and so shows whether they work
    installed = versions()
    return Finding(name="libraries", value=f"transformers {installed['transformers']}, peft {installed['peft']}")


def _processor() -> Finding:
    from lydian.recipes.machine import cpu_name, num_cores

    return Finding(name="processor", value=f"{cpu_name()}, {num_cores()} cores")


def _memory() -> Finding:
    from lydian.recipes.machine import memory_bytes

    size = memory_bytes() / GIB
    if size < 4:
        fix = "The tiny model runs; for the 135M model use a machine with 8 GiB or more."
        return Finding(name="memory", value=f"{size:.1f} GiB", status="note", fix=fix)
    return Finding(name="memory", value=f"{size:.1f} GiB")


def _accelerator() -> Finding:
    from lydian.recipes.machine import hardware

    name = hardware()["accelerator"]
    return Finding(name="accelerator", value=name or "none; the shipped recipes for tiny models need none")


def _bfloat16() -> Finding:
    from lydian.models.load import is_bfloat16_fast

    return Finding(
        name="bfloat16", value="fast here: used where dtype is auto" if is_bfloat16_fast() else "not fast here"
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    with tempfile.TemporaryFile(dir=Path.cwd()):
        pass  # a folder that cannot be written raises, and is then reported as broken
    if free < 2:
        return Finding(name="disk", value=f"{free:.1f} GiB free here", status="note", fix="Keep 2 GiB free for runs.")
    return Finding(name="disk", value=f"{free:.1f} GiB free here")


def _tiny_model() -> Finding:
    from lydian.models.load import locate

    return Finding(name="tiny model", value=str(locate("tiny")))


def _data() -> Finding:
    root = Path(os.environ.get("LYDIAN_DATA") or "data")
    value = f"{root}{'' if root.is_dir() else ' (absent)'}"
    fix = "" if root.is_dir() else "Only recipes with files need it: set LYDIAN_DATA to the folder of your data."
    return Finding(name="data folder", value=value, status="ok" if root.is_dir() else "note", fix=fix)


def _sandbox() -> Finding:
    from lydian.errors import VerifierError
    from lydian.verifiers.code.probe import DEFAULT_MINIMUM, probe

    try:
        states = probe()
    except VerifierError as error:
        return Finding(name="sandbox", value=f"none: {error.given}", status="note", fix=error.fix)
    value = ", ".join(name if not state else f"no {name} ({state})" for name, state in states.items())
    if any(states[name] for name in DEFAULT_MINIMUM):
        fix = f"The `code` verifier asks for {', '.join(DEFAULT_MINIMUM)}: use a kernel or container that allows them."
        return Finding(name="sandbox", value=value, status="note", fix=fix)
    return Finding(name="sandbox", value=value)


def _extra(extra: str) -> Finding:
    from importlib.metadata import version
    from importlib.util import find_spec

    module, package, purpose = EXTRAS[extra]
    if find_spec(module) is None:
        fix = f"For {purpose}: pip install 'lydian[{extra}]'"
        return Finding(name=f"extra {extra}", value="not installed", status="note", fix=fix)
    return Finding(name=f"extra {extra}", value=f"{package} {version(package)}")


LOOKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "torch": _torch,
    "libraries": _libraries,
    "processor": _processor,
    "memory": _memory,
    "accelerator": _accelerator,
    "bfloat16": _bfloat16,
    "disk": _disk,
    "tiny model": _tiny_model,
    "data folder": _data,
    "sandbox": _sandbox,
}
"""What is examined besides the extras, in order."""
