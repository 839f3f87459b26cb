"""The household skills that the simulated robot and the Nav2/MoveIt robot share. Order is part of the prompt."""

from kv_agent_ros.robot.base import ArgumentKind, Parameter, Skill

SPEED = Parameter(
    name='speed_mps', kind=ArgumentKind.NUMBER, is_required=False, unit='m/s', minimum=0.05, maximum=1.0, default=0.5
)


def _target(kind: ArgumentKind) -> Parameter:
    return Parameter(name='target', kind=kind)


HOUSEHOLD_SKILLS: tuple[Skill, ...] = (
    Skill(
        name='navigate', description='drive to a room or a location', parameters=(_target(ArgumentKind.PLACE), SPEED)
    ),
    Skill(
        name='find',
        description='look around the current room for an object',
        parameters=(_target(ArgumentKind.OBJECT),),
    ),
    Skill(
        name='inspect',
        description='go to an object and look at it closely (fill level)',
        parameters=(_target(ArgumentKind.OBJECT),),
    ),
    Skill(name='pick', description='take an object with the gripper', parameters=(_target(ArgumentKind.OBJECT),)),
    Skill(name='place', description='put the held object on a location', parameters=(_target(ArgumentKind.PLACE),)),
    Skill(
        name='pour',
        description='pour out a fraction of what the held object contains, at a sink',
        parameters=(
            _target(ArgumentKind.PLACE),
            Parameter(
                name='fraction',
                kind=ArgumentKind.NUMBER,
                unit='fraction of the content',
                minimum=0.0,
                maximum=1.0,
                default=0.5,
            ),
        ),
    ),
    Skill(name='open', description='open a door', parameters=(_target(ArgumentKind.DOOR),)),
    Skill(name='close', description='close a door', parameters=(_target(ArgumentKind.DOOR),)),
    Skill(
        name='wait',
        description='stand still for a while',
        parameters=(
            Parameter(name='duration_s', kind=ArgumentKind.NUMBER, unit='s', minimum=0.0, maximum=60.0, default=1.0),
        ),
    ),
    Skill(name='dock', description='return to the charging dock'),
)


def skill_by_name(skills: tuple[Skill, ...]) -> dict[str, Skill]:
    """Name → skill."""
    return {skill.name: skill for skill in skills}
