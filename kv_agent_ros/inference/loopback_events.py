"""A public fake: an engine's event stream on loopback, that loses messages, repeats them, and starts anew."""

import threading

import msgspec
import zmq

from kv_agent_ros.deadline import Deadline

ANYWHERE = ('tcp://127.0.0.1:*', 'tcp://127.0.0.1:*')
BIND_S = 10.0
BLOCK_TOKENS = 2


class LoopbackEvents:
    """A publisher with SGLang's frames: counts from 0, and keeps the last `num_kept` batches for who asks."""

    def __init__(self, endpoints: tuple[str, str] = ANYWHERE, num_kept: int = 1000) -> None:
        self._publisher = _bound(zmq.PUB, endpoints[0])
        self._router = _bound(zmq.ROUTER, endpoints[1])
        self._kept: list[tuple[int, bytes]] = []
        self._num_kept = num_kept
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()
        self.answers = True  # whether it repeats
        self.ends_replays = True  # and says when that was all
        self.sequence = 0
        self.at_s = 1.0

    @property
    def endpoint(self) -> str:
        return self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)

    @property
    def replay_endpoint(self) -> str:
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def say(self, *events: object) -> None:
        """Publish one batch."""
        frames = self._next(events)
        self._publisher.send_multipart([b'kv', *frames])

    def lose(self, *events: object) -> None:
        """A batch that only those get who ask for it."""
        self._next(events)

    def say_bytes(self, *frames: bytes) -> None:
        """Publish a message as it is."""
        self._publisher.send_multipart(list(frames))

    def restart(self) -> None:
        """Another life: nothing kept, counting from 0, on the same sockets."""
        self._kept = []
        self.sequence = 0
        self.at_s += 100.0

    def close(self) -> None:
        """End; idempotent."""
        self._ended.set()
        self._thread.join()
        self._publisher.close(0)
        self._router.close(0)

    def _next(self, events: tuple[object, ...]) -> tuple[bytes, bytes]:
        payload = msgspec.msgpack.encode([self.at_s, list(events), 0])
        number = self.sequence.to_bytes(8, 'big')
        self._kept = [*self._kept, (self.sequence, payload)][-self._num_kept :]
        self.sequence += 1
        self.at_s += 1.0
        return number, payload

    def _repeat(self) -> None:
        while not self._ended.is_set():
            if not self._router.poll(10):
                continue
            client, _, first = self._router.recv_multipart()
            if not self.answers:
                continue
            self._send_kept(client, int.from_bytes(first, 'big'))
            while not self.ends_replays and not self._ended.is_set():
                self._send_kept(client, int.from_bytes(first, 'big'))
            self._router.send_multipart([client, b'', b'', (-1).to_bytes(8, 'big', signed=True), b''])

    def _send_kept(self, client: bytes, first: int) -> None:
        for sequence, payload in self._kept:
            if sequence >= first:
                self._router.send_multipart([client, b'', b'kv', sequence.to_bytes(8, 'big'), payload])


def prefix(*hashes: int) -> list[int]:
    """Tokens of the blocks; block n holds the tokens 2n and 2n + 1."""
    return [token for value in hashes for token in (2 * value, 2 * value + 1)]


def stored(
    *hashes: int, parent: int = 0, salt: str = '', medium: str = 'GPU', session: str = '', adapter: str = ''
) -> dict[str, object]:
    """An event: these blocks after the block `parent`; 0 is none."""
    return {
        'type': 'BlockStored',
        'block_hashes': hashes,
        'parent_block_hash': parent or None,
        'token_ids': prefix(*hashes),
        'block_size': BLOCK_TOKENS,
        'lora_id': None,
        'medium': medium,
        'cache_salt': salt or None,
        'session_id': session or None,
        'lora_name': adapter or None,
    }


def removed(*hashes: int, medium: str = 'GPU') -> dict[str, object]:
    """An event: these blocks left one medium."""
    return {'type': 'BlockRemoved', 'block_hashes': hashes, 'medium': medium}


def _bound(kind: int, endpoint: str) -> zmq.Socket[bytes]:
    """A socket at an endpoint that another one may just be leaving."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(kind)
    deadline = Deadline(BIND_S)
    while True:
        try:
            socket.bind(endpoint)
            return socket
        except zmq.ZMQError:
            if deadline.wait(0.02):
                raise
