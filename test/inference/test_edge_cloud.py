"""A small engine on the robot and a larger one away: who is asked, who takes over, and what never leaves."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from kv_agent_ros.deadline import Deadline
from kv_agent_ros.errors import BadRequestError, ModelUnavailableError, Outcome
from kv_agent_ros.inference.base import FinishReason, GenerationRequest, InferenceBackend, Message, Role
from kv_agent_ros.inference.edge_cloud import GO_ON, EdgeCloudBackend
from kv_agent_ros.inference.flaky import Fault, FaultPlan, FlakyBackend
from kv_agent_ros.inference.late_backend import LateBackend
from kv_agent_ros.inference.link_health import LinkHealth
from kv_agent_ros.inference.privacy import PrivacyPolicy
from kv_agent_ros.inference.scripted import ScriptedBackend
from kv_agent_ros.inference.side_books import SideBooks
from kv_agent_ros.kvcache.block import SessionKey

EDGE_TEXT, CLOUD_TEXT = 'small answer of the robot', 'a large answer from far away'
ALL_SHARED = PrivacyPolicy(shared_purposes=frozenset({'*'}))
PATIENCE_S = 0.05
HARD = GenerationRequest(
    session=SessionKey(robot_id='robot1', session_id='s1'),
    messages=(Message(role=Role.SYSTEM, content='Plan.'), Message(role=Role.USER, content='Fetch the cup')),
    purpose='plan',
)
EASY = replace(HARD, purpose='report')
HEAD = Message(role=Role.SYSTEM, content='room ' * 200)
LOST, SILENT = Fault.LOST, Fault.SILENT


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Pair:
    """Two scripted engines and the backend over them; `edge.requests` and `cloud.requests` tell who was asked what."""

    def __init__(
        self,
        *,
        edge: Sequence[FaultPlan] = (),
        cloud: Sequence[FaultPlan] = (),
        policy: PrivacyPolicy = ALL_SHARED,
        clock: Clock | None = None,
    ) -> None:
        self.edge = ScriptedBackend(lambda request: EDGE_TEXT, engine='local')
        self.cloud = ScriptedBackend(lambda request: CLOUD_TEXT, engine='far')
        timed = {'clock': clock} if clock else {}
        self.backend = EdgeCloudBackend(
            edge=FlakyBackend(self.edge, edge),
            cloud=FlakyBackend(self.cloud, cloud),
            is_private=policy,
            patience_s=PATIENCE_S,
            **timed,
        )

    def ask(self, request: GenerationRequest) -> str:
        return self.backend.generate(request, Deadline(10.0)).engine


def lost(after_pieces: int = 0) -> FaultPlan:
    return FaultPlan(fault=LOST, after_pieces=after_pieces)


def test_hard_requests_go_to_the_cloud_and_easy_ones_stay() -> None:
    pair = Pair()
    assert [pair.ask(HARD), pair.ask(EASY)] == ['far', 'local']
    long = replace(EASY, messages=(Message(role=Role.USER, content='x' * 20_000),))
    assert pair.ask(long) == 'far'


def test_lost_cloud_is_replaced_before_anything_was_said() -> None:
    pieces: list[str] = []
    answer = Pair(cloud=[lost()]).backend.generate(HARD, Deadline(10.0), pieces.append)
    assert (answer.text, answer.engine, answer.outcome) == (EDGE_TEXT, 'local', Outcome.SUCCESS)
    assert ''.join(pieces) == EDGE_TEXT
    assert 'cloud: flaky engine' in answer.message


def test_text_of_a_cloud_lost_in_the_middle_is_continued_and_never_repeated() -> None:
    pair, pieces = Pair(cloud=[lost(after_pieces=4)]), []
    answer = pair.backend.generate(replace(HARD, max_new_tokens=50), Deadline(10.0), pieces.append)
    assert ''.join(pieces) == answer.text == 'a large ' + EDGE_TEXT
    continued = pair.edge.requests[0]
    assert continued.messages[: len(HARD.messages)] == HARD.messages
    assert [(each.role, each.content) for each in continued.messages[2:]] == [
        (Role.ASSISTANT, 'a large '),
        (Role.USER, GO_ON),
    ]
    assert continued.max_new_tokens == 46
    usage = answer.usage
    assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
    assert usage.generated_tokens == 4 + len(pieces[4:])
    assert 0.0 < usage.ttft_s <= usage.total_s
    assert answer.token_ids == ()


def test_answer_under_a_schema_is_told_whole_and_starts_anew_when_the_cloud_is_lost() -> None:
    pair, pieces = Pair(cloud=[lost(after_pieces=4)]), []
    answer = pair.backend.generate(replace(HARD, json_schema='{}'), Deadline(10.0), pieces.append)
    assert pieces == [answer.text] == [EDGE_TEXT]
    assert pair.edge.requests[0].messages == HARD.messages


@pytest.mark.parametrize('after_pieces', [0, 3])
def test_silent_cloud_is_given_up_after_the_patience(after_pieces: int) -> None:
    pair, pieces = Pair(cloud=[FaultPlan(fault=SILENT, after_pieces=after_pieces)]), []
    answer = pair.backend.generate(HARD, Deadline(30.0), pieces.append)
    assert (answer.outcome, answer.engine) == (Outcome.SUCCESS, 'local')
    assert answer.text == ''.join(pieces)
    assert answer.usage.total_s < 5.0
    assert 'expected text within 0.05 s' in answer.message


def test_cancel_of_a_silent_cloud_is_a_cancel_and_asks_nobody_else() -> None:
    pair = Pair(cloud=[FaultPlan(fault=SILENT, after_pieces=1)])
    deadline = Deadline(30.0)
    answer = pair.backend.generate(HARD, deadline, lambda text: deadline.cancel())
    assert (answer.outcome, answer.finish_reason) == (Outcome.CANCELED, FinishReason.CANCELED)
    assert pair.edge.requests == []


def test_lost_edge_is_replaced_by_the_cloud() -> None:
    pair = Pair(edge=[lost(after_pieces=2)])
    answer = pair.backend.generate(EASY, Deadline(10.0))
    assert (answer.engine, answer.text) == ('far', 'small ' + CLOUD_TEXT)


def test_when_both_are_lost_the_error_tells_of_both() -> None:
    with pytest.raises(ModelUnavailableError, match=r'cloud: flaky engine.*; edge: flaky engine'):
        Pair(edge=[lost()], cloud=[lost()]).backend.generate(HARD, Deadline(10.0))


def test_request_that_is_wrong_is_not_tried_elsewhere() -> None:
    pair = Pair()

    def refuse(request: GenerationRequest) -> str:
        raise BadRequestError('too long')

    pair.backend = EdgeCloudBackend(edge=pair.edge, cloud=ScriptedBackend(refuse), is_private=ALL_SHARED)
    with pytest.raises(BadRequestError):
        pair.backend.generate(HARD, Deadline(10.0))
    assert pair.edge.requests == []


PRIVATE = [
    PrivacyPolicy(),
    PrivacyPolicy(shared_purposes=frozenset({'explain'})),
    PrivacyPolicy(shared_purposes=frozenset({'*'}), private_robots=frozenset({'robot1'})),
    PrivacyPolicy(shared_purposes=frozenset({'plan'}), private_marks=('the CUP',)),
]


@pytest.mark.parametrize('policy', PRIVATE, ids=['nothing named', 'other purpose', 'robot', 'mark'])
def test_private_request_never_leaves_even_when_the_edge_is_lost(policy: PrivacyPolicy) -> None:
    pair = Pair(edge=[FaultPlan(fault=Fault.NONE), lost()], policy=policy)
    assert pair.ask(HARD) == 'local'
    with pytest.raises(ModelUnavailableError, match='edge'):
        pair.ask(HARD)
    assert pair.cloud.requests == []


def test_lost_cloud_is_left_alone_for_a_pause_and_then_probed_by_one_request() -> None:
    clock = Clock()
    pair = Pair(cloud=[lost(), lost()], clock=clock)
    assert [pair.ask(HARD), pair.ask(HARD)] == ['local', 'local']
    assert len(pair.edge.requests) == 2
    clock.now_s += 1.0
    assert pair.ask(HARD) == 'local'  # the probe is lost, too: the pause doubles
    clock.now_s += 1.0
    assert pair.ask(HARD) == 'local'
    clock.now_s += 1.0
    assert pair.ask(HARD) == 'far'
    assert pair.ask(HARD) == 'far'


def test_only_one_request_at_a_time_probes_a_link_that_failed() -> None:
    clock = Clock()
    health = LinkHealth(clock=clock, first_pause_s=1.0, longest_pause_s=3.0)
    assert all([health.begin(), health.begin()])
    for pause_s in (1.0, 2.0, 3.0, 3.0):
        health.failed()
        clock.now_s += pause_s - 0.01
        assert not health.begin()
        clock.now_s += 0.02
        assert [health.begin(), health.begin()] == [True, False]
    health.gave_up()
    assert health.begin()
    health.succeeded()
    assert all([health.begin(), health.begin()])


class Timed:
    """An InferenceBackend whose answers take a fixed time on the test's clock."""

    def __init__(self, inner: InferenceBackend, clock: Clock, seconds: float) -> None:
        self.inner, self.clock, self.seconds = inner, clock, seconds

    def generate(self, request, deadline, on_text=lambda text: None):
        generation = self.inner.generate(request, deadline, on_text)
        self.clock.now_s += self.seconds
        times = replace(generation.usage, ttft_s=self.seconds, total_s=self.seconds)
        return replace(generation, usage=times)

    def stats(self):
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()


def timed_pair(edge_s: float, cloud_s: float) -> tuple[Pair, EdgeCloudBackend]:
    """Both sides have answered once and are known to take so long for a cold prompt."""
    pair, clock = Pair(), Clock()
    backend = EdgeCloudBackend(
        edge=Timed(pair.edge, clock, edge_s),
        cloud=Timed(pair.cloud, clock, cloud_s),
        is_private=ALL_SHARED,
        clock=clock,
    )
    for number, request in enumerate((HARD, EASY)):
        key = SessionKey(robot_id='robot2', session_id=f'warm-up {number}')
        backend.generate(replace(request, session=key, messages=(HEAD, *HARD.messages)), Deadline(10.0))
    assert (len(pair.edge.requests), len(pair.cloud.requests)) == (1, 1)
    return pair, backend


def test_deadline_that_only_one_side_can_keep_decides() -> None:
    _, slow_cloud = timed_pair(edge_s=0.1, cloud_s=8.0)
    assert slow_cloud.generate(replace(HARD, messages=(HEAD,)), Deadline(4.0)).engine == 'local'
    _, slow_edge = timed_pair(edge_s=8.0, cloud_s=0.1)
    assert slow_edge.generate(replace(EASY, messages=(HEAD,)), Deadline(4.0)).engine == 'far'


def test_urgent_request_goes_where_it_ends_first() -> None:
    _, backend = timed_pair(edge_s=0.1, cloud_s=0.5)
    cold = replace(HARD, messages=(HEAD,))
    assert backend.generate(cold, Deadline(10.0)).engine == 'far'
    other = SessionKey(robot_id='robot3', session_id='s')
    assert backend.generate(replace(cold, session=other, priority=5), Deadline(10.0)).engine == 'local'


def test_session_that_is_warm_in_the_cloud_stays_there_with_easy_questions() -> None:
    _, backend = timed_pair(edge_s=1.0, cloud_s=1.0)
    assert backend.generate(EASY, Deadline(10.0)).engine == 'local'
    session = SessionKey(robot_id='robot4', session_id='s')
    hard = replace(HARD, session=session, messages=(HEAD, *HARD.messages))
    assert backend.generate(hard, Deadline(60.0)).engine == 'far'
    easy = replace(hard, purpose='report', messages=(*hard.messages, Message(role=Role.USER, content='And now?')))
    assert backend.generate(easy, Deadline(60.0)).engine == 'far'
    cold = replace(easy, session=SessionKey(robot_id='robot5', session_id='s'))
    assert backend.generate(cold, Deadline(60.0)).engine == 'local'


def test_books_of_a_side_forget_the_oldest_sessions_and_those_of_a_lost_engine() -> None:
    books, scripted = SideBooks(), ScriptedBackend(lambda request: 'ok')
    for number in range(300):
        request = replace(HARD, session=SessionKey(robot_id='r', session_id=str(number)))
        books.enter(request, scripted.generate(request, Deadline(10.0)))
    warm = [books.warm_chars(replace(HARD, session=SessionKey(robot_id='r', session_id=s))) for s in ('0', '299')]
    assert warm == [0, len('Plan.Fetch the cup')]
    books.forget()
    assert books.warm_chars(request) == 0


def test_books_of_both_sides_add_up() -> None:
    pair = Pair(cloud=[lost()])
    pair.ask(HARD)
    pair.ask(EASY)
    stats = pair.backend.stats()
    assert (stats.engine, stats.model, stats.num_requests) == ('edge_cloud', 'scripted+scripted', 2)
    assert stats.generated_tokens == pair.edge.stats().generated_tokens + pair.cloud.stats().generated_tokens


def test_engine_that_is_connected_late_is_asked_for_until_it_is_there() -> None:
    made: list[ScriptedBackend] = []

    def connect(deadline: Deadline) -> InferenceBackend:
        made.append(ScriptedBackend(lambda request: 'there', engine='far'))
        if len(made) == 1:
            raise ModelUnavailableError('not yet')
        return made[-1]

    late = LateBackend(connect, engine='far', model='m')
    with pytest.raises(ModelUnavailableError, match='not yet'):
        late.generate(HARD, Deadline(10.0))
    assert [late.generate(HARD, Deadline(10.0)).text for _ in range(2)] == ['there', 'there']
    assert len(made) == 2
    assert (late.stats().num_requests, late.stats().num_failures) == (3, 1)
    late.close()
    closed = LateBackend(connect, engine='far', model='m')
    closed.close()
    with pytest.raises(ModelUnavailableError, match='closed'):
        closed.generate(HARD, Deadline(10.0))


PLANS = st.lists(
    st.builds(FaultPlan, fault=st.sampled_from([Fault.NONE, LOST, LOST]), after_pieces=st.integers(0, 12)), max_size=6
)
REQUESTS = st.lists(
    st.builds(
        GenerationRequest,
        session=st.builds(SessionKey, robot_id=st.sampled_from(['robot1', 'secret']), session_id=st.just('s')),
        messages=st.just(HARD.messages),
        json_schema=st.sampled_from(['', '{}']),
        purpose=st.sampled_from(['plan', 'report']),
        max_new_tokens=st.integers(1, 20),
        priority=st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(edge=PLANS, cloud=PLANS, requests=REQUESTS, cancel_after=st.integers(0, 30))
def test_every_request_gets_one_answer_or_one_typed_error_and_its_text_is_what_was_told(
    edge: list[FaultPlan], cloud: list[FaultPlan], requests: list[GenerationRequest], cancel_after: int
) -> None:
    policy = PrivacyPolicy(shared_purposes=frozenset({'*'}), private_robots=frozenset({'secret'}))
    pair = Pair(edge=edge, cloud=cloud, policy=policy)
    for request in requests:
        pieces: list[str] = []
        deadline = Deadline(10.0)

        def listen(piece: str, pieces: list[str] = pieces, deadline: Deadline = deadline) -> None:
            pieces.append(piece)
            if len(pieces) == cancel_after:
                deadline.cancel()

        try:
            answer = pair.backend.generate(request, deadline, listen)
        except ModelUnavailableError:
            continue
        assert ''.join(pieces) == answer.text
        assert (answer.outcome is Outcome.CANCELED) == (deadline.is_canceled and not request.json_schema) or (
            answer.outcome is Outcome.SUCCESS
        )
        assert answer.usage.prompt_tokens == answer.usage.cached_tokens + answer.usage.computed_tokens
        assert answer.usage.ttft_s <= answer.usage.total_s
    assert all(request.session.robot_id != 'secret' for request in pair.cloud.requests)
