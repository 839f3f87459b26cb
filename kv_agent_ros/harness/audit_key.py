"""The key of the audit log's checkpoints, and the newest checkpoint kept beside it, both outside the log directory.

Whoever can rewrite the log but not this place can neither forge a checkpoint nor cut records off before one.
"""

from dataclasses import dataclass
import hashlib
import hmac
import json
import os
from pathlib import Path
import secrets

from kv_agent_ros.errors import AuditError, ConfigError
from kv_agent_ros.harness.audit_record import GENESIS, canonical
from kv_agent_ros.harness.durable import replace_durably

KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A place in the chain: the record `seq` has this `hash`. Seq 0 = before the first record."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class AuditKey:
    """The secret, and the file beside it that holds the newest sealed head."""

    secret: bytes
    head_path: Path

    def mac(self, head: Head) -> str:
        """HMAC-SHA256 (RFC 2104) of a place in the chain, hex."""
        message = canonical({'seq': head.seq, 'hash': head.hash})
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()

    def is_seal_of(self, head: Head, mac: str) -> bool:
        """Whether `mac` was made with this key for this place."""
        return hmac.compare_digest(self.mac(head).encode(), mac.encode('utf-8', 'replace'))

    def store_head(self, head: Head) -> None:
        """Keep the newest sealed place. Raises AuditError."""
        document = canonical({'seq': head.seq, 'hash': head.hash, 'mac': self.mac(head)})
        try:
            replace_durably(self.head_path, document)
        except OSError as error:
            raise AuditError(f'audit head {self.head_path}: cannot be written: {error}') from error

    def load_head(self) -> Head:
        """The newest sealed place, the start of the chain when there is none. Raises AuditError when it is forged."""
        if not self.head_path.exists():
            return Head()
        try:
            document = json.loads(self.head_path.read_bytes())
            head = Head(seq=document['seq'], hash=document['hash'])
            is_genuine = self.is_seal_of(head, document['mac'])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AuditError(f'audit head {self.head_path}: unreadable: {error}') from error
        if not is_genuine:
            raise AuditError(f'audit head {self.head_path}: was not made with this key')
        return head


def load_audit_key(path: Path, log_directory: Path) -> AuditKey:
    """Read the key of the log in `log_directory`, or make one (mode 0600). Raises ConfigError when it is not safe.

    One key serves many logs: the head file's name carries the digest of the log's directory.
    """
    if path.resolve().is_relative_to(log_directory.resolve()):
        raise ConfigError(f'audit key {path}: expected a file outside the log directory {log_directory}')
    try:
        if not path.exists():
            _create(path)
        mode = path.stat().st_mode & 0o077
        secret = bytes.fromhex(path.read_text(encoding='ascii').strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f'audit key {path}: expected a readable file of hex digits: {error}') from error
    if mode:
        raise ConfigError(f'audit key {path}: expected mode 0600, others may read it; run chmod 600 on it')
    if len(secret) < KEY_BYTES:
        raise ConfigError(f'audit key {path}: expected {KEY_BYTES} bytes or more, got {len(secret)}')
    name = hashlib.sha256(str(log_directory.resolve()).encode()).hexdigest()[:12]
    return AuditKey(secret=secret, head_path=path.with_name(f'{path.name}.{name}.head'))


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, 'w', encoding='ascii') as file:
        file.write(secrets.token_hex(KEY_BYTES) + '\n')
        file.flush()
        os.fsync(file.fileno())
