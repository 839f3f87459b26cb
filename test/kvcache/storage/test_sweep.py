"""What a tier has forgotten is deleted behind, and whoever waits for that learns when it is over."""

import threading

from stored_blocks import block

from kv_agent_ros.kvcache.storage.fake import FakeStore
from kv_agent_ros.kvcache.storage.sweep import Sharing, Sweep

WAIT_S = 30.0


def test_who_waits_while_others_have_asked_already_waits_until_it_is_over() -> None:
    device, lock = FakeStore(1 << 20), threading.Lock()
    device.put(*block(1))
    sweep = Sweep(name='test', store=device, sharing=Sharing.OWN, lock=lock, writing=threading.Lock())
    device.works.clear()
    with lock:
        sweep.forget([block(1)[0].key])
    for _ in range(3):  # one sweep hangs, one waits behind it, and there is no room for another
        assert not sweep.wait(0.02)
    comes_back = threading.Timer(0.1, device.works.set)
    comes_back.start()
    try:
        assert sweep.wait(WAIT_S)
        assert not device.blocks
    finally:
        comes_back.join()
        sweep.close(WAIT_S)


def test_wait_for_a_device_that_hangs_ends_in_time() -> None:
    device, lock = FakeStore(1 << 20), threading.Lock()
    sweep = Sweep(name='test', store=device, sharing=Sharing.OWN, lock=lock, writing=threading.Lock())
    device.works.clear()
    with lock:
        sweep.forget([block(1)[0].key])
    assert not sweep.wait(0.05)
    device.works.set()
    assert sweep.wait(WAIT_S)
    sweep.close(WAIT_S)
    assert sweep.wait(WAIT_S)
