import pytest

from kv_agent_ros.errors import BadRequestError
from kv_agent_ros.robot.faults import ANY_TARGET, FaultKind, Faults


def _strikes(faults: Faults, num: int, target: str = 'cup1', robot_id: str = 'robot1') -> list[bool]:
    return [faults.strikes(FaultKind.SLIP, robot_id, target) for _ in range(num)]


def test_without_rates_and_injections_nothing_goes_wrong() -> None:
    assert not any(_strikes(Faults({}, seed=1), 100))


def test_an_injected_fault_strikes_its_target_so_many_times() -> None:
    faults = Faults({}, seed=1)
    faults.inject(FaultKind.SLIP, 'cup1', 2)
    assert _strikes(faults, 1, target='book1') == [False]
    assert _strikes(faults, 4) == [True, True, False, False]


def test_a_fault_injected_for_any_target_strikes_the_next_one() -> None:
    faults = Faults({}, seed=1)
    faults.inject(FaultKind.SLIP, ANY_TARGET, 1)
    assert not faults.strikes(FaultKind.BLOCKED_PATH, 'robot1', 'kitchen_door')
    assert _strikes(faults, 2, target='book1') == [True, False]


def test_cleared_faults_do_not_strike_but_chance_remains() -> None:
    faults = Faults({FaultKind.BLOCKED_PATH: 1.0}, seed=1)
    faults.inject(FaultKind.SLIP, 'cup1', 3)
    faults.clear()
    assert _strikes(faults, 3) == [False, False, False]
    assert faults.strikes(FaultKind.BLOCKED_PATH, 'robot1', 'kitchen_door')


def test_a_rate_is_how_often_it_strikes_and_the_seed_decides_when() -> None:
    first, again, other = (_strikes(Faults({FaultKind.SLIP: 0.3}, seed), 1000) for seed in (1, 1, 2))
    assert first == again != other
    assert 250 < sum(first) < 350


def test_the_luck_of_one_robot_does_not_depend_on_another() -> None:
    alone, together = (Faults({FaultKind.SLIP: 0.5}, seed=3) for _ in range(2))
    expected = _strikes(alone, 50)
    mixed = []
    for _ in range(50):
        together.strikes(FaultKind.SLIP, 'robot2', 'cup1')
        mixed += _strikes(together, 1)
    assert mixed == expected


def test_rates_and_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadRequestError, match=r'1\.5'):
        Faults({FaultKind.SLIP: 1.5}, seed=0)
    for count in (0, -1, True):
        with pytest.raises(BadRequestError, match='count'):
            Faults({}, seed=0).inject(FaultKind.SLIP, 'cup1', count)
