"""The shared nodes as seen from another process: each client is the protocol that it forwards.

A peer that does not answer is an UnreachableError (or ModelUnavailableError for the engine); what that means is
decided by the caller: an engine without cache computes everything, an agent without memory plans without it.
"""

from collections.abc import Sequence
from dataclasses import replace
import logging
from typing import Any

import numpy as np

from kv_agent_ros.action import GenerateStream
from kv_agent_ros.agent.base import Explanation, PlanProposal, PlanRequest
from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import CanceledError, ModelUnavailableError, Outcome, UnreachableError
from kv_agent_ros.inference.base import (
    EngineStats,
    FinishReason,
    Generation,
    GenerationRequest,
    TokenListener,
    ignore_tokens,
)
from kv_agent_ros.inference.endings import cut_short
from kv_agent_ros.kvcache.base import Prefetched, PrefetchPolicy
from kv_agent_ros.kvcache.block import CacheStats, KVNamespace, PrefixLease, SessionKey, TokenArray, WriteLease
from kv_agent_ros.memory.base import MemoryKind, MemoryRecord, Recollection
from kv_agent_ros.ros.calls import ServiceCaller
from kv_agent_ros.ros.conversions.inference import (
    fill_generation_request,
    message_from_msg,
    message_to_msg,
    read_generation,
    turn_from_msg,
)
from kv_agent_ros.ros.conversions.kv import namespace_to_msg, read_stats, session_to_msg, slot_from_msg
from kv_agent_ros.ros.conversions.memory import recollection_from_msg, recollection_to_msg, record_to_msg
from kv_agent_ros.ros.conversions.plan import plan_from_msg
from kv_agent_ros.ros.conversions.values import status_from_msg
from kv_agent_ros.ros.conversions.world import world_to_msg
from kv_agent_ros.ros.endpoints import Endpoints
from kv_agent_ros.srv import (
    AcquirePrefix,
    CommitBlocks,
    DiscardBlocks,
    ExplainFailure,
    ForgetRecord,
    ForkSession,
    GetCacheStats,
    PinSession,
    PlanTask,
    PrefetchPrefix,
    RecallRecords,
    ReleaseLease,
    ReleaseSession,
    RememberRecord,
    ReserveBlocks,
)

_log = logging.getLogger(__name__)

SLACK_S = 5.0  # a peer that honours our deadline may answer so much later


class RosPrefixCache:
    """kv_cache_node as a PrefixCache. Bytes go through shared memory, only leases through here."""

    def __init__(self, endpoints: Endpoints, namespace: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._acquire = endpoints.service_caller(AcquirePrefix, f'{namespace}acquire_prefix')
        self._reserve = endpoints.service_caller(ReserveBlocks, f'{namespace}reserve_blocks')
        self._commit = endpoints.service_caller(CommitBlocks, f'{namespace}commit_blocks')
        self._release = endpoints.service_caller(ReleaseLease, f'{namespace}release_lease')
        self._discard = endpoints.service_caller(DiscardBlocks, f'{namespace}discard_blocks')
        self._prefetch = endpoints.service_caller(PrefetchPrefix, f'{namespace}prefetch_prefix')
        self._fork = endpoints.service_caller(ForkSession, f'{namespace}fork_session')
        self._pin = endpoints.service_caller(PinSession, f'{namespace}pin_session')
        self._end = endpoints.service_caller(ReleaseSession, f'{namespace}release_session')
        self._stats = endpoints.service_caller(GetCacheStats, f'{namespace}cache_stats')

    def acquire(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> PrefixLease:
        request = AcquirePrefix.Request(
            kv_namespace=namespace_to_msg(namespace), session=session_to_msg(session), token_ids=tokens
        )
        reply = self._acquire.ask_twice(request, self._timeout_s)
        _raise_unless_success(self._acquire.name, reply)
        slots = tuple(slot_from_msg(slot) for slot in reply.slots)
        return PrefixLease(lease_id=reply.lease_id, matched_tokens=reply.matched_tokens, slots=slots)

    def reserve(self, namespace: KVNamespace, session: SessionKey, tokens: TokenArray) -> WriteLease:
        request = ReserveBlocks.Request(
            kv_namespace=namespace_to_msg(namespace), session=session_to_msg(session), token_ids=tokens
        )
        reply = self._reserve.ask_twice(request, self._timeout_s)
        _raise_unless_success(self._reserve.name, reply)
        slots = tuple(slot_from_msg(slot) for slot in reply.slots)
        return WriteLease(lease_id=reply.lease_id, first_token=reply.first_token, slots=slots)

    def commit(self, lease_id: str, checksums: Sequence[bytes]) -> int:
        flat = np.frombuffer(b''.join(checksums), np.uint8)
        reply = self._commit.call(CommitBlocks.Request(lease_id=lease_id, checksums=flat), self._timeout_s)
        _raise_unless_success(self._commit.name, reply)
        return int(reply.num_visible)

    def release(self, lease_id: str) -> None:
        self._release.call(ReleaseLease.Request(lease_id=lease_id), self._timeout_s)

    def discard(self, lease_id: str, num_good_blocks: int) -> None:
        request = DiscardBlocks.Request(lease_id=lease_id, num_good_blocks=num_good_blocks)
        self._discard.call(request, self._timeout_s)

    def prefetch(
        self,
        namespace: KVNamespace,
        session: SessionKey,
        tokens: TokenArray,
        policy: PrefetchPolicy,
        timeout_s: float,
    ) -> Prefetched:
        request = PrefetchPrefix.Request(
            kv_namespace=namespace_to_msg(namespace),
            session=session_to_msg(session),
            token_ids=tokens,
            policy=policy.value,
            timeout_s=timeout_s,
        )
        reply = self._prefetch.call(request, timeout_s + self._timeout_s)
        _raise_unless_success(self._prefetch.name, reply)
        return Prefetched(num_blocks=reply.num_blocks, is_complete=reply.is_complete)

    def fork(self, source: SessionKey, session: SessionKey) -> int:
        request = ForkSession.Request(source=session_to_msg(source), session=session_to_msg(session))
        return int(self._fork.call(request, self._timeout_s).num_blocks)

    def pin(self, session: SessionKey, duration_s: float) -> int:
        request = PinSession.Request(session=session_to_msg(session), duration_s=duration_s)
        return int(self._pin.call(request, self._timeout_s).num_blocks)

    def end_session(self, session: SessionKey) -> int:
        request = ReleaseSession.Request(session=session_to_msg(session))
        return int(self._end.call(request, self._timeout_s).num_blocks)

    def stats(self) -> CacheStats:
        return read_stats(self._stats.call(GetCacheStats.Request(), self._timeout_s))


class RosSessionCache:
    """kv_cache_node as the agent's SessionCache. One that is not there, or slow, is done without."""

    def __init__(self, endpoints: Endpoints, namespace: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._prefetch = endpoints.service_caller(PrefetchPrefix, f'{namespace}prefetch_prefix')
        self._pin = endpoints.service_caller(PinSession, f'{namespace}pin_session')
        self._end = endpoints.service_caller(ReleaseSession, f'{namespace}release_session')

    def warm(self, session: SessionKey, duration_s: float) -> None:
        key, policy = session_to_msg(session), PrefetchPolicy.BEST_EFFORT.value
        self._tell(self._prefetch, PrefetchPrefix.Request(session=key, policy=policy))
        self._tell(self._pin, PinSession.Request(session=key, duration_s=duration_s))

    def forget(self, session: SessionKey) -> None:
        self._tell(self._end, ReleaseSession.Request(session=session_to_msg(session)))

    def _tell(self, service: ServiceCaller, request: Any) -> None:
        if service.is_ready:
            try:
                service.call(request, self._timeout_s)
            except UnreachableError as error:
                _log.warning('the session is not kept warm: %s', error)


class RosBackend:
    """inference_node as an InferenceBackend, over its streaming action, so that cancel reaches the engine."""

    def __init__(self, endpoints: Endpoints, namespace: str) -> None:
        self._stream = endpoints.action_caller(GenerateStream, f'{namespace}generate_stream')

    def generate(
        self, request: GenerationRequest, deadline: Deadline, on_text: TokenListener = ignore_tokens
    ) -> Generation:
        goal = GenerateStream.Goal()
        fill_generation_request(request, max(deadline.remaining_s, 0.001), goal)
        try:
            result = self._stream.call(goal, deadline, lambda feedback: on_text(feedback.text))
        except UnreachableError as error:
            raise ModelUnavailableError(str(error)) from error
        except CanceledError as end:
            return cut_short(Generation(outcome=end.outcome), end)
        generation = read_generation(result)
        if generation.outcome is Outcome.CANCELED and not deadline.is_canceled:  # we cancelled because time was over
            generation = replace(generation, outcome=Outcome.TIMEOUT, finish_reason=FinishReason.TIMEOUT)
        if generation.outcome is Outcome.MODEL_UNAVAILABLE:
            raise ModelUnavailableError(generation.message)
        return generation

    def stats(self) -> EngineStats:
        return EngineStats(engine=self._stream.name, model='')

    def close(self) -> None:
        """Nothing of our own to free."""


class RosMemory:
    """memory_node as a Memory."""

    def __init__(self, endpoints: Endpoints, namespace: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._remember = endpoints.service_caller(RememberRecord, f'{namespace}remember')
        self._recall = endpoints.service_caller(RecallRecords, f'{namespace}recall')
        self._forget = endpoints.service_caller(ForgetRecord, f'{namespace}forget')

    def remember(self, record: MemoryRecord) -> None:
        reply = self._remember.call(RememberRecord.Request(record=record_to_msg(record)), self._timeout_s)
        _raise_unless_success(self._remember.name, reply)

    def recall(self, text: str, robot_id: str, kind: MemoryKind, limit: int) -> tuple[Recollection, ...]:
        request = RecallRecords.Request(text=text, robot_id=robot_id, kind=kind.value, limit=limit)
        reply = self._recall.ask_twice(request, self._timeout_s)
        _raise_unless_success(self._recall.name, reply)
        return tuple(recollection_from_msg(item) for item in reply.recollections)

    def forget(self, record_id: str) -> bool:
        reply = self._forget.call(ForgetRecord.Request(record_id=record_id), self._timeout_s)
        return status_from_msg(reply.result).is_success

    def count(self) -> int:
        """The node's own books have the number; over the wire it is not known."""
        return 0


class RosPlanner:
    """planner_node as a Planner."""

    def __init__(self, endpoints: Endpoints, namespace: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._plan = endpoints.service_caller(PlanTask, f'{namespace}plan_task')
        self._explain = endpoints.service_caller(ExplainFailure, f'{namespace}explain_failure')

    def plan(self, request: PlanRequest, deadline: Deadline) -> PlanProposal:
        timeout_s = max(0.1, min(self._timeout_s, deadline.remaining_s))
        message = PlanTask.Request(
            session=session_to_msg(request.session),
            history=[message_to_msg(turn) for turn in request.history],
            task_id=request.task.task_id,
            instruction=request.task.instruction,
            world=world_to_msg(request.world),
            recollections=[recollection_to_msg(item) for item in request.recollections],
            refusal=request.refusal,
            timeout_s=timeout_s,
        )
        reply = self._plan.call_until(message, timeout_s + SLACK_S, deadline)
        status = status_from_msg(reply.result)
        return PlanProposal(
            outcome=status.outcome,
            message=status.message,
            plan=plan_from_msg(reply.plan) if reply.plan.steps else None,
            appended=tuple(message_from_msg(turn) for turn in reply.appended),
            turns=tuple(turn_from_msg(turn) for turn in reply.turns),
            notes=tuple(reply.notes),
        )

    def explain(self, request: PlanRequest, facts: str, deadline: Deadline) -> Explanation:
        timeout_s = max(0.1, min(self._timeout_s, deadline.remaining_s))
        message = ExplainFailure.Request(
            session=session_to_msg(request.session),
            history=[message_to_msg(turn) for turn in request.history],
            task_id=request.task.task_id,
            instruction=request.task.instruction,
            world=world_to_msg(request.world),
            facts=facts,
            timeout_s=timeout_s,
        )
        reply = self._explain.call_until(message, timeout_s + SLACK_S, deadline)
        return Explanation(
            text=reply.text,
            appended=tuple(message_from_msg(turn) for turn in reply.appended),
            turns=tuple(turn_from_msg(turn) for turn in reply.turns),
        )


def _raise_unless_success(name: str, reply: object) -> None:
    """A peer that answers with an error is as good as unreachable for a client that forwards values."""
    status = status_from_msg(reply.result)  # type: ignore[attr-defined]
    if not status.is_success:
        raise UnreachableError(f'{name}: {status.outcome.name}: {status.message}')
