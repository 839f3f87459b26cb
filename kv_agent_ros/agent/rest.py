"""What is left of a task after part of it was done: the instruction for the next plan, so that nothing is done twice.

Conditions that were decided stay decided. Only lasting acts count as done: going, looking and finding may be repeated,
pouring may not.
"""

from collections.abc import Sequence
from dataclasses import replace

from kv_agent_ros.agent.goal import served
from kv_agent_ros.agent.intent import FULL_FROM, HANDLING, ORIGIN, Guard, Intent, Verb
from kv_agent_ros.agent.language import read_instruction
from kv_agent_ros.agent.ledger import acts_of, named
from kv_agent_ros.agent.proof import Moment, decided
from kv_agent_ros.world.conditions import Truth
from kv_agent_ros.world.state import WorldState


def rest_of(instruction: str, moments: Sequence[Moment], world: WorldState, robot_id: str) -> str:
    """The instruction while nothing lasting was done; else what is left of it, as an English sentence."""
    if not any(moment.step.skill in ('pick', 'place', 'pour', 'open', 'close') for moment in moments):
        return instruction
    intents = read_instruction(instruction, world).intents
    truths = [decided(intent, moments, world) for intent in intents]
    due = [index for index, truth in enumerate(truths) if truth is Truth.TRUE]
    acts = acts_of([moment.step for moment in moments], world, '')
    num_served = len(served([intents[index] for index in due], acts, world))
    first_left = due[num_served - 1] + 1 if num_served else 0
    left = [
        replace(intent, guards=()) if truth is Truth.TRUE else intent
        for intent, truth in list(zip(intents, truths, strict=True))[first_left:]
        if truth is not Truth.FALSE
    ]
    robot = world.robot(robot_id)
    held = robot.holding if robot is not None else ''
    if held and not any(named(intent.subject, world) == held and intent.verb in HANDLING for intent in left):
        left.insert(0, Intent(verb=Verb.PUT, subject=held, place=ORIGIN))
    return '; '.join(say(intent) for intent in left) or instruction


def say(intent: Intent) -> str:
    """The intent as a clause that the reader understands."""
    return ''.join(f'if the {_condition(guard)}, ' for guard in intent.guards) + _clause(intent)


def _condition(guard: Guard) -> str:
    state = 'full' if guard.condition.value == FULL_FROM else 'empty'
    return f'{guard.condition.target} {"is" if guard.arm else "is not"} {state}'


def _clause(intent: Intent) -> str:
    subject, place = intent.subject.replace('_', ' '), intent.place.replace('_', ' ')
    match intent.verb:
        case Verb.GO:
            return f'go to the {place}'
        case Verb.FIND:
            return f'find the {subject}'
        case Verb.CHECK:
            return f'check the {subject}'
        case Verb.PICK:
            return f'pick up the {subject}'
        case Verb.PUT:
            return f'put the {subject} back' if intent.place == ORIGIN else f'put the {subject} on the {place}'
        case Verb.POUR:
            into = f' into the {place}' if place else ''
            return f'pour out {intent.amount * 100.0:.6g}% of the {subject}{into}'
        case Verb.OPEN | Verb.CLOSE:
            return f'{intent.verb.value} the {subject}'
        case Verb.WAIT:
            return f'wait {intent.amount:g} seconds'
        case Verb.DOCK:
            return 'return to the dock'
