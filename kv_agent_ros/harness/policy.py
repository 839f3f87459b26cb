"""What the robots of this place may do: a YAML file read into frozen values, refused as a whole when anything is off.

Default deny: a skill that is not listed is refused. The numbers are the operator's own, from the risk assessment of the
place; nothing here claims to be a limit of any standard, and this software is not a safety function.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
import hashlib
import json
from pathlib import Path

from kv_agent_ros.errors import ConfigError
from kv_agent_ros.harness.yaml_section import Section, read_yaml
from kv_agent_ros.world.state import LocationKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """Inclusive range of a number argument, in the unit of the skill's parameter."""

    minimum: float
    maximum: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillPolicy:
    """The allow-list, and limits by skill and argument that are tighter than the robot's own."""

    allowed: tuple[str, ...]
    limits: Mapping[str, Mapping[str, Limit]]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepOutPolicy:
    """Rooms no robot enters, besides the zones of the map, which are always keep-out."""

    rooms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeoplePolicy:
    """How near a person a skill may happen. A person counts as present for `memory_s` after being seen."""

    memory_s: float
    clearance_m: Mapping[str, float]  # by skill; a skill that is absent needs none


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPolicy:
    """Budgets of a plan.

    `ttl_s`: an ALLOW is void that long after the check or the last step done. `condition_max_age_s`: a branch is not
    decided on an older measurement.
    """

    max_steps: int
    max_duration_s: float
    ttl_s: float
    condition_max_age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalPolicy:
    """What a person must approve first: skills, and whatever touches objects of these categories."""

    skills: tuple[str, ...]
    categories: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PourPolicy:
    """Where liquid may go: locations of these kinds or categories, and never onto or over `electrical` things."""

    kinds: tuple[LocationKind, ...]
    categories: tuple[str, ...]
    electrical: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VelocityPolicy:
    """Bounds of a commanded velocity. Nearer than `stop_distance_m` to an obstacle there is no way forward."""

    max_linear_mps: float
    max_angular_radps: float
    max_linear_mps2: float
    max_angular_radps2: float
    stop_distance_m: float
    scan_max_age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryPolicy:
    """How often a failed step is tried again and a task planned again before the robot makes itself safe."""

    max_retries: int
    max_replans: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Everything the gate judges by.

    `battery_reserve`: fraction that must be left on reaching the dock. `patience_s`: how long a step waits, standing
    still, for a person to go away or for a fresh observation, before it is refused.
    """

    name: str
    skills: SkillPolicy
    keep_out: KeepOutPolicy
    people: PeoplePolicy
    battery_reserve: float
    plan: PlanPolicy
    world_max_age_s: float
    patience_s: float
    approval: ApprovalPolicy
    forbidden_categories: tuple[str, ...]
    pour: PourPolicy
    velocity: VelocityPolicy
    recovery: RecoveryPolicy

    @property
    def policy_hash(self) -> str:
        """SHA-256 of the canonical form: equal policies have equal hashes, however the file is laid out."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(',', ':'), default=lambda kind: kind.value)
        return hashlib.sha256(canonical.encode()).hexdigest()


def load_policy(path: Path) -> Policy:
    """Read a policy file. Raises ConfigError, naming the entry, when it is missing, malformed or out of range."""
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'policy {path}: expected a readable UTF-8 YAML file: {error}') from error
    return parse_policy(text)


def parse_policy(text: str) -> Policy:
    """Read a policy from YAML text; every entry is required, an unknown one is an error. Raises ConfigError."""
    root = Section('policy', read_yaml('policy', text))
    policy = Policy(
        name=root.text('name'),
        skills=_read_skills(root.section('skills')),
        keep_out=_read_keep_out(root.section('keep_out')),
        people=_read_people(root.section('people')),
        battery_reserve=root.number('battery_reserve', 0.0, 1.0),
        plan=_read_plan(root.section('plan')),
        world_max_age_s=root.number('world_max_age_s', 0.01, 3600.0),
        patience_s=root.number('patience_s', 0.01, 3600.0),
        approval=_read_approval(root.section('approval')),
        forbidden_categories=root.names('forbidden_categories'),
        pour=_read_pour(root.section('pour')),
        velocity=_read_velocity(root.section('velocity')),
        recovery=_read_recovery(root.section('recovery')),
    )
    root.close()
    return policy


def _read_skills(section: Section) -> SkillPolicy:
    allowed = section.names('allowed')
    limits: dict[str, dict[str, Limit]] = {}
    for skill, arguments in section.section('limits').sections():
        if skill not in allowed:
            raise ConfigError(f'{arguments.path}: limits a skill that is not allowed; expected one of {allowed}')
        limits[skill] = {name: _read_limit(limit) for name, limit in arguments.sections()}
    section.close()
    return SkillPolicy(allowed=allowed, limits=limits)


def _read_limit(section: Section) -> Limit:
    minimum = section.number('minimum', -1e6, 1e6)
    maximum = section.number('maximum', minimum, 1e6)
    section.close()
    return Limit(minimum=minimum, maximum=maximum)


def _read_keep_out(section: Section) -> KeepOutPolicy:
    rooms = section.names('rooms')
    section.close()
    return KeepOutPolicy(rooms=rooms)


def _read_people(section: Section) -> PeoplePolicy:
    people = PeoplePolicy(
        memory_s=section.number('memory_s', 0.0, 86400.0),
        clearance_m=section.section('clearance_m').numbers(0.0, 100.0),
    )
    section.close()
    return people


def _read_plan(section: Section) -> PlanPolicy:
    plan = PlanPolicy(
        max_steps=section.count('max_steps', 1, 1000),
        max_duration_s=section.number('max_duration_s', 1.0, 86400.0),
        ttl_s=section.number('ttl_s', 1.0, 86400.0),
        condition_max_age_s=section.number('condition_max_age_s', 1.0, 86400.0),
    )
    section.close()
    return plan


def _read_approval(section: Section) -> ApprovalPolicy:
    approval = ApprovalPolicy(skills=section.names('skills'), categories=section.names('categories'))
    section.close()
    return approval


def _read_pour(section: Section) -> PourPolicy:
    kinds = section.names('kinds')
    known = {kind.value: kind for kind in LocationKind}
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise ConfigError(f'{section.path}.kinds: expected some of {sorted(known)}, got {unknown}')
    pour = PourPolicy(
        kinds=tuple(known[kind] for kind in kinds),
        categories=section.names('categories'),
        electrical=section.names('electrical'),
    )
    section.close()
    return pour


def _read_velocity(section: Section) -> VelocityPolicy:
    velocity = VelocityPolicy(
        max_linear_mps=section.number('max_linear_mps', 0.0, 20.0),
        max_angular_radps=section.number('max_angular_radps', 0.0, 20.0),
        max_linear_mps2=section.number('max_linear_mps2', 0.01, 100.0),
        max_angular_radps2=section.number('max_angular_radps2', 0.01, 100.0),
        stop_distance_m=section.number('stop_distance_m', 0.0, 10.0),
        scan_max_age_s=section.number('scan_max_age_s', 0.01, 60.0),
    )
    section.close()
    return velocity


def _read_recovery(section: Section) -> RecoveryPolicy:
    recovery = RecoveryPolicy(
        max_retries=section.count('max_retries', 0, 10), max_replans=section.count('max_replans', 0, 10)
    )
    section.close()
    return recovery
