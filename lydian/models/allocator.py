"""How the C library hands out memory to tensors of a few megabytes and more."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST_FROM_HEAP = 1 << 30
_LEAST_RETURNED = 1 << 30
"""Bytes that must lie free for giving them back to be worth the page faults that it costs later."""


_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallocInfo(ctypes.Structure):
    """What mallinfo2(3) says of the heaps; `uordblks` are the bytes in use, `fordblks` those that lie free."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that tensors free, for the next ones; True if its C library can do that.

    glibc gives every large block back to the system when it is freed and asks for it again at the next allocation; the
    system then clears it page by page. A training step frees and asks for the same gigabytes over and over: in an
    update of a 135M model a tenth of the time went there (docs/performance.md). Now the process keeps what it needed
    at its peak. torch is told to ask for huge pages too, if it has not allocated anything yet. Settings that the
    environment already has, GLIBC_TUNABLES or THP_MEM_ALLOC_ENABLE, stay as they are.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    library, never = _glibc(), -1
    if library is None or "GLIBC_TUNABLES" in os.environ:
        return False
    return bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST_FROM_HEAP) and library.mallopt(_TRIM_THRESHOLD, never))


def return_freed_memory(above: float) -> bool:
    """Gives memory that tensors have freed back to the system if the process holds more than `above` bytes, and a
    gigabyte or more of that lies free; True if it did.

    Blocks seldom fit where others of another size were, so that a heap that is only ever kept grows from round to
    round. Taking back what was given takes as long as a fifth of a step (docs/performance.md), hence the bound.
    """
    library = _glibc()
    if library is None or held_bytes() <= above or freed_bytes() < _LEAST_RETURNED:
        return False
    return bool(library.malloc_trim(0))


def freed_bytes() -> int:
    """Memory that tensors have freed and this process keeps for the next ones; 0 where the C library does not say, as
    before glibc 2.33."""
    library = _glibc()
    if library is None or not hasattr(library, "mallinfo2"):
        return 0
    library.mallinfo2.restype = _MallocInfo
    info = library.mallinfo2()  # what lies free in it may have gone back already
    return int(min(info.fordblks, max(0, held_bytes() - info.uordblks)))


def held_bytes() -> int:
    """Memory that this process holds; 0 where the system does not say so in /proc."""
    place = Path("/proc/self/statm")
    return int(place.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if place.is_file() else 0


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
