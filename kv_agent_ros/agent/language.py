"""Reads an instruction in Chinese or English (or both mixed) into intents in order, each with its guards.

A deterministic reader over the tokens of lexicon.py. It never guesses: every word that it cannot use ends up in
`Reading.unread` with the reason. Scope of a condition: the actions of its own clause and those joined by "and"/并;
a later clause belongs to it only when it puts back what the condition's actions took, and no semicolon parts them.
Docking is never conditional.
"""

from dataclasses import dataclass, field, replace

from kv_agent_ros.agent.clauses import intents_of
from kv_agent_ros.agent.frame import Frame, Refs
from kv_agent_ros.agent.intent import Guard, Intent, Reading, Verb, empty, full, with_put_back
from kv_agent_ros.agent.lexicon import Lexicon, Token
from kv_agent_ros.agent.words import Kind
from kv_agent_ros.world.state import WorldState

MAX_INSTRUCTION_CHARS = 1000
_NEGATED = {'full': 'not_full', 'not_full': 'full', 'empty': 'not_empty', 'not_empty': 'empty'}


def read_instruction(text: str, world: WorldState) -> Reading:
    """What the instruction asks for in this home; `unread` is empty exactly when all of it was understood."""
    if len(text) > MAX_INSTRUCTION_CHARS:
        return Reading(
            intents=(),
            unread=(f'the instruction: expected at most {MAX_INSTRUCTION_CHARS} characters, got {len(text)}',),
        )
    reader = _Reader(world)
    for token in Lexicon(world).tokens(text):
        reader.feed(token)
    reader.finish()
    if not reader.intents and not reader.unread:
        return Reading(intents=(), unread=(f'no wish found in {text[:80]!r}',))
    return Reading(intents=with_put_back(reader.intents), unread=tuple(dict.fromkeys(reader.unread)))


@dataclass(slots=True)
class _Scope:
    """The condition that holds for what is being read."""

    guard: Guard
    num_acts: int = 0
    is_leaving: bool = False
    handled: set[str] = field(default_factory=set)

    def leave(self, *, is_for_good: bool) -> None:
        """The clause is over; only “else” follows, or putting back what was handled, unless a semicolon says no."""
        self.is_leaving = True
        if is_for_good:
            self.handled.clear()


class _Reader:
    """One pass over the tokens."""

    def __init__(self, world: WorldState) -> None:
        self.intents: list[Intent] = []
        self.unread: list[str] = []
        self._world = world
        self._refs = Refs()
        self._frame = Frame()
        self._scope: _Scope | None = None
        self._in_condition = False
        self._is_postfix = False
        self._is_clause_start = True

    def feed(self, token: Token) -> None:
        if token.kind is Kind.UNKNOWN:
            self._refuse_word(token.text)
        elif token.kind is Kind.FILLER:
            return
        elif self._in_condition:
            self._feed_condition(token)
        else:
            self._feed_clause(token)
        self._is_clause_start = token.kind in (Kind.BREAK, Kind.LINK)

    def finish(self) -> None:
        if self._in_condition:
            self._close_condition()
        self._flush()

    def _refuse_word(self, text: str) -> None:
        if self.unread and not text.isascii() and self.unread[-1].startswith('“') and self._joins:
            self.unread[-1] = self.unread[-1][:-1] + text + '”'
        else:
            self.unread.append(f'“{text}”')
        self._joins = True

    _joins = False

    def _feed_clause(self, token: Token) -> None:
        if token.text == 'empty' and not self._frame.verb and not self._frame.objects:
            token = replace(token, kind=Kind.VERB, value='pour_all')
        match token.kind:
            case Kind.BREAK:
                self._flush()
                if self._scope is not None and self._scope.num_acts:
                    self._scope.leave(is_for_good=token.value == 'hard')
            case Kind.LINK:
                self._flush()
            case Kind.IF:
                self._open_condition()
            case Kind.MAYBE_IF:
                if self._frame.verb not in (Verb.CHECK.value, Verb.FIND.value) or self._frame.state:
                    self._open_condition()
            case Kind.SO:
                self._so()
            case Kind.ELSE:
                self._else()
            case Kind.VERB | Kind.TAKE | Kind.CHARGE | Kind.ARRIVE:
                self._verb(token)
            case _:
                self._frame.take(token)

    def _verb(self, token: Token) -> None:
        frame = self._frame
        if token.kind is Kind.CHARGE:
            if frame.verb in ('go', 'return') and not frame.places:
                frame.is_charge = True
                return
            if frame.verb in ('go', 'return'):
                return
        if token.kind is Kind.ARRIVE and (frame.verb or frame.is_taking):
            frame.take(replace(token, kind=Kind.TO))
            return
        if frame.verb:
            self._flush()
        if token.kind is Kind.TAKE:
            self._frame.is_taking = True
            return
        self._frame.verb = {Kind.CHARGE: 'charge', Kind.ARRIVE: 'go'}.get(token.kind, token.value)

    def _open_condition(self) -> None:
        self._is_postfix = bool(self._frame.verb)
        self._flush()
        self._scope = None
        self._in_condition = True

    def _feed_condition(self, token: Token) -> None:
        is_end = token.kind in (Kind.BREAK, Kind.LINK, Kind.SO) or (token.kind is Kind.VERB and self._frame.has_state)
        if not is_end:
            self._frame.take(token)
            return
        self._close_condition()
        if token.kind is Kind.VERB:
            self._verb(token)

    def _so(self) -> None:
        if self._frame.state and not self._frame.verb:
            self._is_postfix = False
            self._close_condition()

    def _close_condition(self) -> None:
        self._in_condition = False
        frame, self._frame = self._frame, Frame()
        state = frame.state or self._asked(frame)
        subject = self._refs.object_of(frame)
        if not state or not subject:
            self.unread.append('the condition after “if”: expected a state (full, empty) of a known object')
            return
        arm = not state.startswith('not_')
        condition = full(subject) if state.endswith('full') else empty(subject)
        guard = Guard(condition=condition, arm=arm)
        self._refs.subject, self._refs.state = subject, state
        if self._is_postfix and self.intents:
            self.intents[-1] = replace(self.intents[-1], guards=(guard,))
        else:
            self._scope = _Scope(guard=guard)

    def _asked(self, frame: Frame) -> str:
        asked = self._refs.state
        return _NEGATED.get(asked, '') if frame.is_negated else asked if frame.is_affirmed else ''

    def _else(self) -> None:
        self._flush()
        if self._scope is None:
            self.unread.append('“else” without an “if” before it')
            return
        guard = self._scope.guard
        self._scope = _Scope(guard=replace(guard, arm=not guard.arm))

    def _flush(self) -> None:
        frame, self._frame = self._frame, Frame()
        self._joins = False
        intents, unread = intents_of(frame, self._refs, self._world)
        self.unread.extend(unread)
        for intent in intents:
            self._emit(intent)

    def _emit(self, intent: Intent) -> None:
        scope = self._scope
        if scope is not None and (intent.verb is Verb.DOCK or (scope.is_leaving and not _puts_back(intent, scope))):
            self._scope = scope = None
        if scope is None:
            self.intents.append(intent)
            return
        scope.num_acts += 1
        scope.handled.update({intent.subject} if intent.verb in (Verb.PICK, Verb.POUR) else ())
        self.intents.append(replace(intent, guards=(scope.guard,)))


def _puts_back(intent: Intent, scope: _Scope) -> bool:
    return intent.verb is Verb.PUT and intent.subject in scope.handled
