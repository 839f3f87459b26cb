"""Runs one asynchronous exchange under a Deadline, without a thread: a cancelled exchange closes its connection.

The rest of the suite is synchronous; the event loop lives and dies inside the call.
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from kv_agent_ros.deadline import Deadline

POLL_S = 0.02

Result = TypeVar('Result')


def run_within(deadline: Deadline, work: Coroutine[object, object, Result]) -> Result:
    """The result of `work`; raises CanceledError or DeadlineError, at most POLL_S late, after `work` has cleaned up."""
    return asyncio.run(_watch(deadline, work))


async def _watch(deadline: Deadline, work: Coroutine[object, object, Result]) -> Result:
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=min(POLL_S, deadline.remaining_s))
            if not task.done():
                deadline.check()
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})
