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
HELD = """
import resource, torch
from lydian.models.allocator import freed_bytes, keep_freed_memory, return_freed_memory
keep_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20
blocks = [torch.ones(1 << 22) for _ in range({num})]
pin = torch.ones(1 << 22)  # above the blocks, so that the heap cannot just end lower
held = resident()
del blocks
kept = resident()
freed = freed_bytes() >> 20
print(held - kept, freed, int(return_freed_memory({above} << 20)), kept - resident(), freed - (freed_bytes() >> 20))
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(("num", "above", "is_returned"), [(80, 1200, 1), (80, 4000, 0), (8, 0, 0)])
def test_a_gigabyte_of_freed_memory_is_given_back(num: int, above: int, is_returned: int):
    """80 and 8 blocks of 16 MiB, all freed: the process keeps them until it is told to give them back, if it holds
    more than it should; and 8 even then."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE")}
    command = [sys.executable, "-c", HELD.format(num=num, above=above)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    left_alone, freed, found, given_back, fewer_freed = map(int, done.stdout.split())
    assert 16 * num - 32 < freed < 16 * num + 200
    assert left_alone < 32
    assert found == is_returned
    assert given_back > 1000 < fewer_freed if is_returned else given_back < 8 > fewer_freed
