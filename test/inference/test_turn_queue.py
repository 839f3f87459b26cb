from collections.abc import Callable
import threading
import time

import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, DeadlineError
from kv_agent_ros.inference.turn_queue import TurnQueue


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = Deadline(10)
    while not is_true():
        deadline.check()
        deadline.wait(0.001)


def test_waiting_requests_go_by_priority_then_by_arrival() -> None:
    queue = TurnQueue()
    order: list[str] = []

    def work(name: str, priority: int) -> None:
        with queue.turn(priority, Deadline(10)):
            order.append(name)

    threads = []
    with queue.turn(0, Deadline(10)):
        for name, priority in (('low', -1), ('first', 0), ('second', 0), ('high', 5)):
            threads.append(threading.Thread(target=work, args=(name, priority)))
            threads[-1].start()
            wait_until(lambda: queue.num_waiting == len(threads))
    for thread in threads:
        thread.join(10)
    assert order == ['high', 'first', 'second', 'low']


def test_only_one_holds_the_turn() -> None:
    queue = TurnQueue()
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(50):
            with queue.turn(0, Deadline(10)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1] * 200


def test_waiting_ends_with_the_deadline_and_leaves_no_place_behind() -> None:
    queue = TurnQueue()
    with queue.turn(0, Deadline(10)):
        with pytest.raises(DeadlineError), queue.turn(9, Deadline(0.05)):
            pass
        assert queue.num_waiting == 0
    with queue.turn(0, Deadline(10)):
        pass


def test_waiting_ends_soon_after_a_cancel() -> None:
    queue = TurnQueue()
    deadline = Deadline(60)
    with queue.turn(0, Deadline(60)):
        timer = threading.Timer(0.05, deadline.cancel)
        timer.start()
        started_s = time.monotonic()
        with pytest.raises(CanceledError), queue.turn(0, deadline):
            pass
        assert time.monotonic() - started_s < 5
    timer.join(5)


def test_turn_is_given_back_when_its_work_fails() -> None:
    queue = TurnQueue()
    with pytest.raises(ZeroDivisionError), queue.turn(0, Deadline(10)):
        raise ZeroDivisionError
    with queue.turn(0, Deadline(1)):
        pass
