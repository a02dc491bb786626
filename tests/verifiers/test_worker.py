import threading
import time

import pytest

from lydian.errors import VerifierError
from lydian.verifiers import worker
from lydian.verifiers.worker import WorkerPool

BOMB = r"9^{9^{9^{9}}}"


@pytest.fixture
def pool():
    pool = WorkerPool(1)
    yield pool
    pool.close()


def test_a_killed_worker_is_replaced(pool: WorkerPool) -> None:
    assert pool.compare("x+x", "2x", cpu_seconds=3).is_equal is True
    assert pool.compare("1", BOMB, cpu_seconds=0.3).is_equal is None
    assert pool.compare("x+x", "3x", cpu_seconds=3).is_equal is False


def test_a_worker_that_sleeps_past_the_wall_clock_limit_is_killed(pool: WorkerPool, monkeypatch) -> None:
    """Processor time alone never ends it: the limit there is an hour, on the wall 0.36 s."""
    pool.compare("x", "y", cpu_seconds=3)
    monkeypatch.setattr(worker, "WALL_PER_CPU", 0.0001)
    started = time.monotonic()
    assert pool.compare("1", BOMB, cpu_seconds=3600).is_equal is None
    assert time.monotonic() - started < 30


def test_threads_share_the_pool_without_mixing_up_answers() -> None:
    pool = WorkerPool(2)
    results: dict[int, bool | None] = {}

    def ask(i: int) -> None:
        results[i] = pool.compare(f"x+{i}", f"{i % 3}+x", cpu_seconds=3).is_equal

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert results == {i: i < 3 for i in range(12)}


def test_a_worker_that_cannot_start_is_an_error_and_costs_no_place(pool: WorkerPool, monkeypatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(worker.sys, "executable", "/bin/false")
        with pytest.raises(VerifierError):
            pool.compare("x", "x+0", cpu_seconds=3)
    assert pool.compare("x+x", "2x", cpu_seconds=3).is_equal is True
