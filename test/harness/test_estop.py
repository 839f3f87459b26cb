"""The latch: nothing delays a stop, not even a slow disk or a person who resets at the same time."""

from pathlib import Path
import threading

from kv_agent_ros.harness.durable import replace_durably
from kv_agent_ros.harness.estop import EstopLatch, open_estop_latch

WAIT_S = 10.0


class SlowDisk:
    """Writes once it may."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def write(self, path: Path, content: bytes) -> None:
        self.began.set()
        assert self.may_end.wait(WAIT_S)
        replace_durably(path, content)


def test_a_stop_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    disk = SlowDisk()
    latch = open_estop_latch(tmp_path / 'estop.json', ('robot1', 'robot2'), write=disk.write)
    latch.latch('robot1', 'red button')
    saving = threading.Thread(target=latch.save)
    saving.start()
    assert disk.began.wait(WAIT_S)
    stopping = threading.Thread(target=latch.latch, args=('robot2', 'red button'), daemon=True)
    stopping.start()
    stopping.join(1.0)
    is_delayed = stopping.is_alive()
    disk.may_end.set()
    saving.join(WAIT_S)
    stopping.join(WAIT_S)
    assert not is_delayed
    assert latch.is_latched('robot2')


def test_a_stop_during_a_reset_stays(tmp_path: Path) -> None:
    disk = SlowDisk()
    latch = EstopLatch(tmp_path / 'estop.json', {'robot1': 'red button'}, disk.write)
    resetting = threading.Thread(target=latch.release, args=('robot1',))
    resetting.start()
    assert disk.began.wait(WAIT_S)
    stopping = threading.Thread(target=latch.latch, args=('robot1', 'red button'), daemon=True)
    stopping.start()
    stopping.join(1.0)
    is_delayed = stopping.is_alive()
    disk.may_end.set()
    resetting.join(WAIT_S)
    stopping.join(WAIT_S)
    latch.save()
    assert not is_delayed
    assert latch.is_latched('robot1')
    assert open_estop_latch(tmp_path / 'estop.json', ()).is_latched('robot1')
