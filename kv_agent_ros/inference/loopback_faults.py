"""A public fake: the ways in which servers fail, as Answers of a LoopbackServer."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
import socket
import struct

from kv_agent_ros.inference.loopback_server import (
    Answer,
    LoopbackServer,
    end,
    piece,
    reply,
    send_event,
    start_stream,
)
from kv_agent_ros.inference.openai_wire import JsonObject

SLOW_S = 0.05
LINGER_NONE = struct.pack('ii', 1, 0)

Fault = Callable[[LoopbackServer], Answer]


def killed(server: LoopbackServer) -> Answer:
    """The process dies after its first word: the connection is reset."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        handler.connection.close()

    return answer


def gone(server: LoopbackServer) -> Answer:
    """It dies before it says anything: the connection ends."""
    return lambda handler, body: None


def hung(server: LoopbackServer) -> Answer:
    """It accepts the request and never answers; a half-open connection looks the same from here."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        server.is_ending.wait(60.0)

    return answer


def stuck(server: LoopbackServer) -> Answer:
    """It says one word and then nothing."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        send_event(handler, piece('Hel'))
        server.is_ending.wait(60.0)

    return answer


def slow(server: LoopbackServer) -> Answer:
    """It says a word now and then, for longer than anybody waits."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        while not server.is_ending.wait(SLOW_S):
            send_event(handler, piece('o '))

    return answer


def refusing(status: int) -> Fault:
    """It answers with a status: 429 and 503 are a full server's."""
    return lambda server: lambda handler, body: reply(handler, status, 'text/plain', 'not now')


def saying(payload: str) -> Fault:
    """It streams something that is no chunk of an answer."""

    def fault(server: LoopbackServer) -> Answer:
        def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
            start_stream(handler)
            send_event(handler, payload)

        return answer

    return fault


def other_page(server: LoopbackServer) -> Answer:
    """Something else listens there: a page instead of an answer."""
    return lambda handler, body: reply(handler, 200, 'text/html', '<html>It works!</html>')


def aborting(server: LoopbackServer) -> Answer:
    """It ends the request on its own account."""

    def answer(handler: BaseHTTPRequestHandler, body: JsonObject) -> None:
        start_stream(handler)
        for event in (end('abort'), '[DONE]'):
            send_event(handler, event)

    return answer


BROKEN: dict[str, Fault] = {
    'killed in mid-answer': killed,
    'gone before the answer': gone,
    'full, 429': refusing(429),
    'full, 503': refusing(503),
    'broken, 500': refusing(500),
    'wrong JSON': saying('{"choices": ['),
    'JSON of another kind': saying('[1, 2]'),
    'out of memory': saying('{"error": {"message": "out of memory", "code": 500}}'),
    'another page': other_page,
    'aborted by the server': aborting,
}
"""Faults that end in an error."""

SILENT: dict[str, Fault] = {'hung': hung, 'stuck in mid-answer': stuck, 'slow': slow}
"""Faults that only a deadline ends."""
