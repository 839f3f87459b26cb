"""A thread for operations that may hang: one that breaks costs nobody after it."""

import threading

import pytest

from kv_agent_ros.kvcache.storage.deadline_thread import DeadlineThread

WAIT_S = 10.0


def nothing() -> None:
    """Done at once."""


def test_operation_after_one_that_broke_is_done_while_the_first_thread_still_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(threading, 'excepthook', lambda defect: is_over.wait(WAIT_S))  # where the traceback is printed
    thread = DeadlineThread('test')
    try:
        assert not thread.run(lambda: [].pop(), WAIT_S, undo=nothing)
        assert thread.run(nothing, 1.0, undo=nothing)
        assert not thread.is_hanging
    finally:
        is_over.set()
        thread.stop()


def test_operation_that_breaks_after_its_deadline_is_undone_and_hangs_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, 'excepthook', lambda defect: None)
    may_end, is_undone = threading.Event(), threading.Event()

    def late() -> None:
        may_end.wait(WAIT_S)
        raise ValueError

    thread = DeadlineThread('test')
    assert not thread.run(late, 0.01, undo=is_undone.set)
    assert thread.is_hanging
    may_end.set()
    assert is_undone.wait(WAIT_S)
    assert thread.run(nothing, WAIT_S, undo=nothing)
    assert not thread.is_hanging
    thread.stop()
