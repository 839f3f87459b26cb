"""What the demonstration can be told on its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
import re

from kv_agent_ros.agent.task_queue import MAX_INSTRUCTION_CHARS
from kv_agent_ros.config import SERVERS, STATE_DIR, Setting, expand

CUP = 'cup1'
REPORT_TASK = '去厨房检查水杯是否倒满，如果满了就倒掉一半，然后返回充电座。'
ENGLISH = 'Go to the kitchen, check whether the cup is full, if it is pour out half, then return to the charging dock.'


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """A run of the demonstration."""

    instruction: str
    robot: str
    engine: str
    engine_url: str
    model: str
    cloud_engine: str
    cloud_purposes: tuple[str, ...]
    world: str
    seed: int
    speed: float
    cup_fill: tuple[str, ...]
    removed: tuple[str, ...]
    state_dir: Path
    picture: Path
    is_headless: bool
    is_json: bool
    is_fresh: bool
    is_composed: bool

    @property
    def audit_key(self) -> Path:
        """Where the key of this demonstration's audit is."""
        return self.state_dir / 'keys' / 'audit.key'

    def parameters(self) -> dict[str, dict[str, Setting]]:
        """Node parameters of this run, by executable."""
        return {
            'simulator_node': {
                'world': self.world,
                'seed': self.seed,
                'realtime_factor': self.speed,
                'fill_levels': self.cup_fill,
                'removed': self.removed,
            },
            'inference_node': {
                'engine': self.engine,
                'engine_url': self.engine_url,
                'model': self.model,
                'cloud_engine': self.cloud_engine,
                'cloud_purposes': self.cloud_purposes,
            },
            **{name: {'world': self.world} for name in ('world_model_node', 'perception_node')},
            'harness_node': {'audit_key_file': str(self.audit_key)},
        }


def read_options(arguments: Sequence[str]) -> DemoOptions:
    """The options, or an exit with the help text."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.cup != CUP and parsed.cup_fill is None and not parsed.no_cup:
        parser.error('--cup says which cup --cup-fill or --no-cup is about: give one of them too')
    state_dir = expand(parsed.state_dir)
    return DemoOptions(
        instruction=parsed.instruction,
        robot=parsed.robot,
        engine=parsed.engine,
        engine_url=parsed.engine_url,
        model=parsed.model,
        cloud_engine=parsed.cloud_engine,
        cloud_purposes=tuple(parsed.cloud_purpose),
        world=parsed.world,
        seed=parsed.seed,
        speed=parsed.speed,
        cup_fill=(f'{parsed.cup}={parsed.cup_fill}',) if parsed.cup_fill is not None else (),
        removed=(parsed.cup,) if parsed.no_cup else (),
        state_dir=state_dir,
        picture=Path(parsed.picture) if parsed.picture else state_dir / 'demo.png',
        is_headless=parsed.headless or parsed.json,
        is_json=parsed.json,
        is_fresh=parsed.fresh,
        is_composed=parsed.composed,
    )


def _instruction(text: str) -> str:
    if not 0 < len(text.strip()) <= MAX_INSTRUCTION_CHARS:
        raise argparse.ArgumentTypeError(f'expected 1 to {MAX_INSTRUCTION_CHARS} characters, got {len(text)}')
    return text


def _robot_name(text: str) -> str:
    if not re.fullmatch(r'[a-z][a-z0-9_]*', text):
        raise argparse.ArgumentTypeError(f'expected a name like robot1 (a-z, 0-9, _), got {text!r}')
    return text


def _level(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f'expected 0 (empty) to 1 (full), got {text}')
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='scripts/demo', description='A simulated robot does a task over a real ROS 2 graph, planned by a model.'
    )
    add = parser.add_argument
    add(
        'instruction',
        nargs='?',
        type=_instruction,
        default=REPORT_TASK,
        help='what to do, Chinese or English (default: the cup task)',
    )
    add('--robot', default='robot1', type=_robot_name, help='name of the robot (robot1)')
    add('--engine', default='local', choices=['local', *SERVERS, 'edge_cloud', 'none'], help='language model (local)')
    add('--engine-url', default='http://127.0.0.1:30000', help='server of all engines but local and none')
    add('--cloud-engine', default='sglang', choices=SERVERS, help='what the server of edge_cloud is (sglang)')
    add('--cloud-purpose', action='append', default=[], help='what edge_cloud may send: plan, repair, explain, *')
    add('--model', default='bundled', help='bundled, a model directory, or the served model name')
    add('--world', default='home', help='home or the path of a world file')
    add('--seed', type=int, default=0, help='seed of the simulator (0)')
    add('--speed', type=float, default=4.0, help='simulated over real time; 0 = as fast as possible (4)')
    add('--cup', default=CUP, help='the cup that --cup-fill and --no-cup are about (cup1)')
    add('--cup-fill', type=_level, default=None, metavar='LEVEL', help='how full the cup is at start, 0 to 1')
    add('--no-cup', action='store_true', help='take the cup out of the home')
    add('--state-dir', default=f'{STATE_DIR}/demo', help='KV cache, memory, sessions and audit are kept here')
    add('--fresh', action='store_true', help='forget what earlier runs left there: everything starts cold')
    add('--picture', default='', help='where the PNG goes (default: in the state folder)')
    add('--composed', action='store_true', help='all nodes in one process instead of one each')
    add('--headless', action='store_true', help='plain lines, no colours')
    add('--json', action='store_true', help='one JSON object as the last line; implies --headless')
    return parser
