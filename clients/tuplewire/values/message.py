"""TaskMessage: one message, which exists only while you look at it. Source: Storm's `TaskMessage`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Self, SupportsIndex, TypeAlias

from tuplewire.errors import MAX_TASK, InvalidTaskError, MalformedError
from tuplewire.values.group import BytesLike, as_bytes, as_task, check_task

SHUTDOWN_TASK = -1
"""The task id of Storm's shutdown notice; it ends a receive loop and never crosses a session."""

_MAX_SERIALIZED_TASK = 2**15 - 1
Headers: TypeAlias = Iterable[tuple[str, bytes | None]]
"""Names and values, in an order that is kept; a name may come more than once."""
ReadHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The same as it was read."""


class TaskMessage:
    """One message: the destination task id and the payload; maybe a key and headers. Immutable.

    A message that has come reads them only when you ask. Two messages are equal when all four are.
    """

    __slots__ = ("_encoded", "message", "task")
    __match_args__ = ("task", "message")

    task: int
    message: bytes
    _encoded: bytes  # missing where there is neither key nor headers

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
            key: What it is about, as in Kafka; None: it has none.
            headers: Names and values, such as `("traceparent", b"00-...")`, in an order that is kept. A name
                may come more than once.

        Raises:
            InvalidTaskError: The task is no integer from 0 to 2^31-1.
            MessageError: The payload, a key or a header's value is not bytes, or headers are not pairs.
        """
        _set_task(self, task if type(task) is int and 0 <= task <= MAX_TASK else check_task(task))
        _set_message(self, message if type(message) is bytes else as_bytes(message))
        if key is not None or headers:
            from tuplewire.values.headers import encode_headers

            _set_encoded(self, encode_headers(key, headers))

    @classmethod
    def received(cls, task: int, message: bytes, encoded: bytes = b"") -> Self:
        """Make one of checked parts, with a key and headers as they travel; see tuplewire.values.headers."""
        received = cls.__new__(cls)
        _set_task(received, task)
        _set_message(received, message)
        if encoded:
            _set_encoded(received, encoded)
        return received

    @property
    def payload(self) -> bytes:
        """The payload, by the name that send() and a batch's `payloads` have for it; `message` is Storm's."""
        return self.message

    @property
    def key(self) -> bytes | None:
        """What the message is about; None if it has no key. Raises MalformedError as `headers`."""
        return self._decoded()[0]

    @property
    def headers(self) -> ReadHeaders:
        """Pairs of name and value, as they were given.

        Raises MalformedError if its sender, another program, has sent something else in their place.
        """
        return self._decoded()[1]

    def _decoded(self) -> tuple[bytes | None, ReadHeaders]:
        if not (encoded := encoded_of(self)):
            return None, ()
        from tuplewire.values.headers import decode_headers

        return decode_headers(encoded)

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(f"a TaskMessage is immutable: make another one to change its {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a TaskMessage is immutable: its {name} stays")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskMessage):
            return NotImplemented
        return self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).received, self._parts()

    def _parts(self) -> tuple[int, bytes, bytes]:
        return self.task, self.message, encoded_of(self)

    def __repr__(self) -> str:
        more = f", key={self.key!r}, headers={self.headers!r}" if encoded_of(self) else ""
        return f"TaskMessage(task={self.task!r}, message={self.message!r}{more})"

    def serialize(self) -> bytes:
        """Return Storm's bytes: the task id in two bytes, big-endian, then the payload.

        They have no place for a key and headers. Raises InvalidTaskError for an id over 32767, which two
        bytes do not hold.
        """
        task = as_task(self.task)
        if not SHUTDOWN_TASK <= task <= _MAX_SERIALIZED_TASK:
            raise InvalidTaskError(
                f"task {task} does not fit Storm's two-byte task id (-1 to {_MAX_SERIALIZED_TASK}); "
                f"send it through a transport, whose task ids go to {MAX_TASK}"
            )
        return struct.pack(">h", task) + as_bytes(self.message)

    @classmethod
    def deserialize(cls, packet: BytesLike) -> Self:
        """Read what serialize() wrote; MalformedError when it is too short, InvalidTaskError below -1."""
        packet = as_bytes(packet)
        if len(packet) < 2:
            raise MalformedError(
                f"a serialized TaskMessage has a task id of two bytes, this is {len(packet)} byte(s) long"
            )
        (task,) = struct.unpack_from(">h", packet)
        if task < SHUTDOWN_TASK:
            raise InvalidTaskError(f"task {task} is negative; ids run from 0, and -1 is the shutdown notice")
        return cls.received(task, packet[2:])


# A message sets its slots with these: its own __setattr__ refuses, and object's takes twice as long.
_set_task, _set_message, _set_encoded = (
    vars(TaskMessage)[name].__set__ for name in ("task", "message", "_encoded")
)

SHUTDOWN = TaskMessage.received(SHUTDOWN_TASK, b"")
"""Storm's shutdown notice. No other message has that task: TaskMessage() refuses it."""


def encoded_of(message: Any) -> bytes:
    """Return the encoded key and headers of a TaskMessage, or of what a program made like one."""
    return getattr(message, "_encoded", b"")
