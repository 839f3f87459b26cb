"""The task book: one running task per robot, a bounded line, cancel of both, nothing lost."""

import threading

import pytest

from kv_agent_ros.agent.journal import Journal, ProgressListener
from kv_agent_ros.agent.task import StepRecord, StepStatus, Task, TaskPhase, TaskProgress, TaskResult
from kv_agent_ros.agent.task_queue import TaskBook
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import Outcome, Status
from kv_agent_ros.inference.base import Turn, Usage
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Plan


def task(task_id: str, robot_id: str = 'robot1', timeout_s: float = 10.0) -> Task:
    return Task(task_id=task_id, robot_id=robot_id, instruction='return to the dock', timeout_s=timeout_s)


def succeed(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
    on_progress(TaskProgress(task_id=task.task_id, phase=TaskPhase.EXECUTING, message='driving'))
    return TaskResult(task_id=task.task_id, outcome=Outcome.SUCCESS, message='docked')


def test_tasks_of_a_robot_run_in_order_of_acceptance() -> None:
    book = TaskBook()
    for name in ('a', 'b', 'c'):
        assert book.submit(task(name)).is_success
    order: list[str] = []

    def note(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        order.append(task.task_id)
        return succeed(task, deadline, on_progress)

    while book.work('robot1', note, Deadline(0.01)):
        continue
    assert order == ['a', 'b', 'c']
    assert [entry.result.outcome for entry in book.list('robot1') if entry.result] == [Outcome.SUCCESS] * 3


def test_a_queued_task_is_canceled_at_once_and_never_runs() -> None:
    book = TaskBook()
    book.submit(task('a'))
    assert book.cancel('a').is_success
    entry = book.get('a')
    assert entry is not None and entry.result is not None and entry.result.outcome is Outcome.CANCELED
    assert not book.work('robot1', succeed, Deadline(0.01))


def test_a_running_task_is_told_to_stop_and_ends_with_its_own_result() -> None:
    book = TaskBook()
    book.submit(task('a'))
    running = threading.Event()

    def block(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        running.set()
        while not deadline.wait(5.0):
            continue
        return TaskResult(task_id=task.task_id, outcome=Outcome.CANCELED, message='stands still')

    worker = threading.Thread(target=book.work, args=('robot1', block, Deadline(5.0)))
    worker.start()
    assert running.wait(5.0)
    assert book.cancel('a').message == 'stopping'
    entry = book.wait_done('a', Deadline(5.0))
    worker.join(5.0)
    assert entry is not None and entry.result is not None and entry.result.message == 'stands still'


def test_a_running_task_shows_its_plans_steps_and_turns_so_far() -> None:
    book = TaskBook()
    book.submit(task('a'))
    plan = Plan(steps=(Step(skill='dock'),))
    record = StepRecord(index=0, step=Step(skill='dock'), status=StepStatus.SUCCEEDED, outcome=Outcome.SUCCESS)
    turn = Turn(purpose='plan', usage=Usage(), engine='local', outcome=Outcome.SUCCESS)
    seen: list[tuple[object, ...]] = []

    def look(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        journal = Journal(task, on_progress, 0.0)
        journal.add_turns([turn])
        journal.add_plan(plan, 'allowed')
        journal.begin_step(0)
        journal.add_step(record)
        entry = book.get('a')
        assert entry is not None
        seen.append((entry.plans, entry.steps, entry.turns))
        return journal.result(Status(), '', '', 0.0)

    assert book.work('robot1', look, Deadline(1.0))
    assert seen == [((plan,), (record,), (turn,))]


def test_two_robots_run_at_the_same_time() -> None:
    book = TaskBook()
    book.submit(task('a', 'robot1'))
    book.submit(task('b', 'robot2'))
    meeting = threading.Barrier(2, timeout=5.0)

    def meet(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        meeting.wait()
        return succeed(task, deadline, on_progress)

    workers = [threading.Thread(target=book.work, args=(name, meet, Deadline(5.0))) for name in ('robot1', 'robot2')]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(5.0)
    assert all(entry.is_done for entry in book.list(''))


def test_the_line_and_the_past_are_bounded() -> None:
    book = TaskBook(max_queued=2, max_past=3)
    assert [book.submit(task(name)).outcome for name in 'abc'] == [
        Outcome.SUCCESS,
        Outcome.SUCCESS,
        Outcome.BAD_REQUEST,
    ]
    for index in range(10):
        book.submit(task(f'x{index}', 'robot2'))
        book.work('robot2', succeed, Deadline(1.0))
    assert [entry.task.task_id for entry in book.list('robot2')] == ['x7', 'x8', 'x9']


@pytest.mark.parametrize('timeout_s', [0.0, -1.0, float('nan'), True])
def test_a_timeout_that_is_none_is_refused(timeout_s: float) -> None:
    assert TaskBook().submit(task('a', timeout_s=timeout_s)).outcome is Outcome.BAD_REQUEST


def test_an_id_is_used_once_and_an_empty_instruction_is_refused() -> None:
    book = TaskBook()
    book.submit(task('a'))
    assert book.submit(task('a')).outcome is Outcome.BAD_REQUEST
    assert book.submit(Task(task_id='b', robot_id='robot1', instruction=' ')).outcome is Outcome.BAD_REQUEST


def test_a_task_whose_run_raises_is_done_and_says_so() -> None:
    book = TaskBook()
    book.submit(task('a'))

    def crash(task: Task, deadline: Deadline, on_progress: ProgressListener) -> TaskResult:
        raise RuntimeError('bug')

    with pytest.raises(RuntimeError):
        book.work('robot1', crash, Deadline(1.0))
    entry = book.get('a')
    assert entry is not None and entry.result is not None and entry.result.outcome is Outcome.INTERNAL
    assert book.submit(task('b')).is_success and book.work('robot1', succeed, Deadline(1.0))


def test_the_duration_of_a_task_that_is_not_done_counts_from_its_acceptance() -> None:
    now_s = [100.0]
    book = TaskBook(clock=lambda: now_s[0])
    book.submit(task('a'))
    now_s[0] = 107.0
    (entry,) = book.list('robot1')
    assert book.duration_s(entry) == 7.0
    assert book.work('robot1', succeed, Deadline(1.0))
    (entry,) = book.list('robot1')
    assert entry.result is not None and book.duration_s(entry) == entry.result.duration_s
