"""Programs a second of the `code` verifier: simple functions, each in a fresh sandboxed interpreter, all cores.

    python benchmarks/verifiers_code.py [COUNT]

Prints one JSON line: programs, seconds, programs a second, CPU milliseconds a program, layers, cores.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

from lydian.data.trajectory import Finish
from lydian.verifiers import make_verifier, verify_all
from lydian.verifiers.verifier import bare_problem


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    verifier = make_verifier("code")
    problem = bare_problem('{"entry_point": "add", "tests": ["assert add(1, 2) == 3"]}')
    items = [(problem, f"def add(a, b): return a + b  # {number}", Finish.STOP) for number in range(count)]
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    verdicts = verify_all(verifier, items)
    seconds, now = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(verdict.is_correct for verdict in verdicts)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    figures = {"programs": count, "seconds": round(seconds, 2), "per_second": round(count / seconds, 1)}
    machine = {"layers": getattr(verifier, "layers", ()), "cores": len(os.sched_getaffinity(0))}
    print(json.dumps(figures | {"cpu_ms": round(1000 * cpu / count, 1)} | machine))


if __name__ == "__main__":
    main()
