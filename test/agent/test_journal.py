"""What a task's journal says of itself."""

from kv_agent_ros.agent.journal import Journal, ignore_progress
from kv_agent_ros.agent.task import Task
from kv_agent_ros.robot.base import Step
from kv_agent_ros.robot.plan import Plan


def make_journal() -> Journal:
    journal = Journal(Task(task_id='t1', robot_id='robot1', instruction='dock'), ignore_progress, 0.0)
    journal.add_plan(Plan(steps=(Step(skill='dock'),)), 'allowed')
    return journal


def test_a_plan_alone_is_no_act() -> None:
    assert not make_journal().has_acted


def test_a_step_that_was_begun_may_have_moved_the_robot_although_its_end_is_not_known() -> None:
    journal = make_journal()
    journal.begin_step(0)
    assert journal.has_acted
