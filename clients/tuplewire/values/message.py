"""TaskMessage: one message, created only when a program reads or builds it.

Used by programs, clients and TaskMessageBatch. Owns the payload and the encoded key and headers. Thread-safe.
Design: docs/design/sessions.md ("Keys and headers are one opaque column"). Source: Storm's `TaskMessage`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Any, Self, SupportsIndex, TypeAlias

from tuplewire.errors import MAX_TASK, InvalidTaskError, MalformedError
from tuplewire.values.group import BytesLike, as_bytes, check_task
from tuplewire.values.headers import DEADLINE, decode_headers, encode_headers, parse_number, parse_reply_task

SHUTDOWN_TASK = -1
"""The task id of Storm's shutdown notice. It ends a receive loop and is never sent over a session."""

_MAX_SERIALIZED_TASK = 2**15 - 1
Headers: TypeAlias = Iterable[tuple[str, bytes | None]]
"""Names and values. The order is preserved, and names may be repeated."""
DecodedHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Decoded headers."""


class TaskMessage:
    """One message: the destination task id, the payload, and optionally a key and headers. Immutable.

    The key and headers of a received message are decoded on access. Two messages are equal if their task,
    payload, key and headers are equal.
    """

    __slots__ = ("_encoded", "message", "task")
    __match_args__ = ("task", "message")

    task: int
    message: bytes
    _encoded: bytes  # unset if there is neither a key nor headers

    def __init__(
        self,
        task: SupportsIndex,
        message: BytesLike,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Make a message.

        Args:
            task: The destination.
            message: The payload.
            key: The key, as in Kafka, or None.
            headers: Names and values, such as `("traceparent", b"00-...")`; see Headers.

        Raises:
            InvalidTaskError: The task is not an integer from 0 to 2^31-1.
            MessageError: The payload, a key or a header's value is not bytes, or headers are not pairs.
        """
        _set_task(self, task if type(task) is int and 0 <= task <= MAX_TASK else check_task(task))
        _set_message(self, message if type(message) is bytes else as_bytes(message))
        if key is not None or headers:
            _set_encoded(self, encode_headers(key, headers))

    @classmethod
    def from_checked(cls, task: int, message: bytes, encoded: bytes = b"") -> Self:
        """Make a message from checked parts. encoded: its key and headers, as from encode_headers()."""
        received = cls.__new__(cls)
        _set_task(received, task)
        _set_message(received, message)
        if encoded:
            _set_encoded(received, encoded)
        return received

    @property
    def payload(self) -> bytes:
        """The payload. send() and the `payloads` of a batch use this name; `message` is Storm's name."""
        return self.message

    @property
    def key(self) -> bytes | None:
        """The key, or None. Raises MalformedError like `headers`."""
        return self._decoded()[0]

    @property
    def headers(self) -> DecodedHeaders:
        """The headers, as pairs of name and value.

        Raises:
            MalformedError: Another program has sent the message with invalid bytes for key and headers.
        """
        return self._decoded()[1]

    @property
    def is_request(self) -> bool:
        """True if the sender of the message waits for client.answer(). Raises as `headers`."""
        return parse_reply_task(self.headers) is not None

    @property
    def expired(self) -> bool:
        """True if a request's deadline has passed. Compares clocks of two hosts. Raises as `headers`."""
        deadline = parse_number(self.headers, DEADLINE)
        return deadline is not None and deadline < time.time() * 1000

    def _decoded(self) -> tuple[bytes | None, DecodedHeaders]:
        return decode_headers(encoded_of(self))

    def __setattr__(self, name: str, _: object = None) -> None:
        raise AttributeError(f"a TaskMessage is immutable: make another one to change its {name}")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskMessage):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_checked, self._parts()

    def _parts(self) -> tuple[int, bytes, bytes]:
        return self.task, self.message, encoded_of(self)

    def __repr__(self) -> str:
        more = f", key={self.key!r}, headers={self.headers!r}" if encoded_of(self) else ""
        return f"TaskMessage(task={self.task!r}, message={self.message!r}{more})"

    def serialize(self) -> bytes:
        """Return Storm's format: the task id in two bytes, big-endian, then the payload; no key or headers.

        Raises InvalidTaskError for a task id above 32767, which exceeds two bytes.
        """
        if self.task > _MAX_SERIALIZED_TASK:
            raise InvalidTaskError(
                f"task {self.task} does not fit Storm's two-byte task id (-1 to {_MAX_SERIALIZED_TASK}); "
                f"send it through a transport, whose task ids go to {MAX_TASK}"
            )
        return struct.pack(">h", self.task) + self.message

    @classmethod
    def deserialize(cls, packet: BytesLike) -> Self:
        """Decode the bytes of serialize().

        Raises MalformedError for fewer than two bytes, InvalidTaskError for a task id below -1.
        """
        packet = as_bytes(packet)
        if len(packet) < 2:
            raise MalformedError(
                f"a serialized TaskMessage has a task id of two bytes, this is {len(packet)} byte(s) long"
            )
        (task,) = struct.unpack_from(">h", packet)
        if task < SHUTDOWN_TASK:
            raise InvalidTaskError(f"task {task} is negative; ids run from 0, and -1 is the shutdown notice")
        return cls.from_checked(task, packet[2:])


# These set the slots of a message: its __setattr__ raises, and object.__setattr__ takes twice as long.
_set_task, _set_message, _set_encoded = (
    vars(TaskMessage)[name].__set__ for name in ("task", "message", "_encoded")
)

SHUTDOWN_MESSAGE = TaskMessage.from_checked(SHUTDOWN_TASK, b"")
"""Storm's shutdown notice. No sender can send its task id. deserialize() accepts it, as Storm does."""


def encoded_of(message: Any) -> bytes:
    """Return the encoded key and headers of a TaskMessage; empty for a similar object of a program."""
    return getattr(message, "_encoded", b"")
