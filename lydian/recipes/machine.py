"""What this machine is: processor, memory, accelerator, and the versions of what numbers depend on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("lydian", "torch", "transformers", "peft", "tokenizers", "numpy", "math-verify")
"""Packages whose version a run records: what its numbers may depend on."""


def versions() -> dict[str, str]:
    """Python's version and those of PACKAGES that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # absent from the record is how "not installed" reads
    return found


def hardware() -> dict[str, Any]:
    """Processor's name, cores and bytes of memory that this process may use, and the accelerator's name or None."""
    import torch

    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if accelerator is None and torch.backends.mps.is_available():
        accelerator = "Apple GPU (mps)"
    return {"cpu": cpu_name(), "cores": num_cores(), "memory_bytes": memory_bytes(), "accelerator": accelerator}


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # not Linux
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    written = [path.read_text(encoding="ascii").strip() for path in limits if path.is_file()]
    return min([physical, *(int(limit) for limit in written if limit.isdigit())])
