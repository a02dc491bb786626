"""Freed memory stays with the process: page faults of the same allocation, again and again, in fresh processes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

LOOP = """
import resource, torch
torch.ones(3)
{call}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fewest = 1 << 30
for _ in range(12):
    before = faults()
    torch.ones(1 << 24)
    fewest = min(fewest, faults() - before)
print(fewest)
"""
TUNE = "from lydian.models.allocator import keep_freed_memory; assert keep_freed_memory() is {}"


def fewest_faults(call: str, **environment: str) -> int:
    """Of twelve allocations of 64 MiB, each freed before the next, the one with the fewest page faults."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE")}
    command = [sys.executable, "-c", LOOP.format(call=call)]
    done = subprocess.run(command, env=inherited | environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_used_again():
    """16,384 faults without (32 where the system gives huge pages by itself); hardly any with it."""
    without = fewest_faults("")
    assert without >= 32
    assert fewest_faults(TUNE.format(True)) * 4 < without
    kept = "glibc.malloc.trim_threshold=131072"
    assert fewest_faults(TUNE.format(False), GLIBC_TUNABLES=kept) * 4 >= without  # what the user has set stays
