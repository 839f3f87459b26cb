"""The thread behind a queue: bounded, replaced when it dies, ended in order."""

import threading

import pytest

from kv_agent_ros.kvcache.worker import Worker


def test_jobs_are_done_in_order_and_flush_waits_for_them() -> None:
    done: list[int] = []
    worker = Worker(name='test', work=done.append, max_queued=100)
    assert all(worker.submit(number) for number in range(50))
    assert worker.flush(10.0)
    assert done == list(range(50))
    assert worker.close(10.0)


def test_full_queue_refuses_and_dropped_jobs_come_back() -> None:
    gate, entered = threading.Event(), threading.Event()

    def wait(job: int) -> None:
        entered.set()
        assert gate.wait(10.0)

    worker = Worker(name='test', work=wait, max_queued=2)
    assert worker.submit(1)
    assert entered.wait(10.0)
    assert [worker.submit(number) for number in (2, 3, 4)] == [True, True, False]
    assert not worker.flush(0.0)
    assert worker.drop() == (2, 3)
    gate.set()
    assert worker.close(10.0)
    assert not worker.submit(5)


def test_thread_that_dies_is_replaced_at_once_and_does_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[str] = []
    monkeypatch.setattr(threading, 'excepthook', lambda details: deaths.append(details.exc_type.__name__))
    done: list[int] = []
    gate = threading.Event()

    def work(job: int) -> None:
        assert gate.wait(10.0)
        done.append(10 // job)

    worker = Worker(name='test', work=work, max_queued=10)
    for job in (5, 0, 0, 2):
        worker.submit(job)
    gate.set()
    assert worker.flush(10.0)
    assert (done, worker.num_deaths) == ([2, 5], 2)
    assert worker.close(10.0)
    assert set(deaths) <= {'ZeroDivisionError'}


def test_worker_that_never_worked_has_no_thread() -> None:
    num_threads = threading.active_count()
    worker = Worker(name='test', work=print, max_queued=1)
    assert threading.active_count() == num_threads
    assert worker.close(1.0)
