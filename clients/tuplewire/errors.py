"""Every error that Tuplewire raises; the name says whose fault it is.

::

    TuplewireError
    ├── ConfigError             a setting is wrong (also a ValueError)
    │   └── TopologyError           a topology does not hold together
    ├── MessageError            what you hand over is wrong (also a ValueError)
    │   ├── InvalidTaskError        a task id outside its range
    │   ├── MessageTooLargeError    one payload over the limit
    │   ├── UnsupportedValueError   a tuple's value that the serializer cannot write
    │   └── MalformedError          bytes or columns that do not hold together
    │       └── MalformedTupleError     bytes that are no tuple of the topology
    ├── ClosedError             you closed it, or its process was forked
    ├── BufferFullError         it would block: the bound on pending messages is reached
    ├── FlushTimeoutError       not everything was acknowledged in time; it is still pending
    ├── BindError               an address to listen on is in use or not ours
    ├── UnreachableError        nobody answers at the address, or the peer broke off
    └── RefusedError            the peer answered, and said no; `code` names the reason
        ├── ProtocolVersionError    WrongTopologyError      StaleIncarnationError
        ├── StaleAssignmentError    UnknownTaskError        NotLocalError
        ├── SequenceGapError        CreditExceededError     DrainingError
        ├── UnauthenticatedError    PermissionDeniedError   WrongWorkerError
        ├── TooManyHopsError        StaleEpochError         StageGoneError
        ├── EpochTooLargeError      UnknownRunError
        └── SupersededError         ResourceLimitError      RefusedMessagesError (several)
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

MIN_TASK = 0
MAX_TASK = 2**31 - 1


class TuplewireError(Exception):
    """The root of every error that Tuplewire raises on purpose.

    All errors pickle with their attributes and their cause, regardless of the constructor's arguments.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {name: _travelling(value) for name, value in self.__dict__.items()}
        return _restored, (type(self), self.args, attributes, _travelling(self.__cause__))


def _travelling(value: Any) -> Any:
    """Return the value if it pickles, or its text: an unpicklable error would break a process pool."""
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        text = f"{type(value).__name__}: {value}"
        return TuplewireError(text) if isinstance(value, BaseException) else text
    return value


def _restored(
    kind: type[TuplewireError],
    arguments: tuple[Any, ...],
    attributes: dict[str, Any],
    cause: BaseException | None,
) -> TuplewireError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    error.__cause__ = cause
    return error


def as_tuplewire(error: BaseException) -> TuplewireError:
    """Return the error that ended a thread as a TuplewireError."""
    if isinstance(error, TuplewireError):
        return error
    found = TuplewireError(f"a thread of Tuplewire ended by a defect: {error!r}; please report it")
    found.__cause__ = error
    return found


class ConfigError(TuplewireError, ValueError):
    """A setting is missing, unknown or outside its range."""


class TopologyError(ConfigError):
    """A topology names a missing part, or its declarations contradict each other."""


class MessageError(TuplewireError, ValueError):
    """A message, batch or column is wrong; nothing of it was sent."""


class InvalidTaskError(MessageError):
    """A task id is outside its range."""


class MessageTooLargeError(MessageError):
    """One payload is over the limit; it alone is refused."""

    def __init__(self, task: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"a message of {size_bytes} bytes to task {task} is over the limit of {limit_bytes} bytes; "
            "split it, or raise max_message_bytes on both sides"
        )
        self.task = task
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class UnsupportedValueError(MessageError):
    """A value in a tuple has no form in a message; the error names its field."""


class MalformedError(MessageError):
    """Bytes or columns that do not hold together."""


class MalformedTupleError(MalformedError):
    """Bytes that are no tuple of this topology; the error names the field if it was reached."""


class ClosedError(TuplewireError):
    """You have closed the object, or it belongs to another process."""


class BufferFullError(TuplewireError):
    """The bound on pending messages is reached, and the timeout (if any) has passed."""


class FlushTimeoutError(TuplewireError, TimeoutError):
    """Some messages were not acknowledged in time; they stay pending and may still arrive."""


class BindError(TuplewireError):
    """An address to listen on is in use, or not one of this machine."""


class UnreachableError(TuplewireError):
    """Nobody answers at the address, or the peer broke off."""


_BY_CODE: dict[str, type[RefusedError]] = {}


class RefusedError(TuplewireError):
    """The peer answered and refused; `code` is the name of the wire's ErrorCode.

    owner: where to go instead (a worker's address), empty when nobody knows.
    """

    code: ClassVar[str] = "UNSPECIFIED"

    def __init_subclass__(cls, code: str = "") -> None:
        if code:
            cls.code = code
            _BY_CODE[code] = cls

    def __init__(self, detail: str, owner: str = "") -> None:
        super().__init__(detail)
        self.owner = owner


class ProtocolVersionError(RefusedError, code="PROTOCOL_VERSION"):
    """The two sides have no protocol version in common: bring them to the same release."""


class ProtocolError(RefusedError, code="MALFORMED"):
    """The peer says that this side broke the protocol: a defect, or two releases that do not match."""


class WrongTopologyError(RefusedError, code="WRONG_TOPOLOGY"):
    """The worker serves another topology."""


class StaleIncarnationError(RefusedError, code="STALE_INCARNATION"):
    """A newer process with the same sender or consumer id has taken over; this one must stop."""


class StaleAssignmentError(RefusedError, code="STALE_ASSIGNMENT"):
    """The sender routes by an older assignment than the receiver."""


class UnknownTaskError(RefusedError, code="UNKNOWN_TASK"):
    """The worker's assignment has no such task."""


class PayloadRefusedError(RefusedError, code="MESSAGE_TOO_LARGE"):
    """A payload is larger than the receiver takes."""


class SequenceGapError(RefusedError, code="SEQUENCE_GAP"):
    """A frame did not follow the last accepted one."""


class CreditExceededError(RefusedError, code="CREDIT_EXCEEDED"):
    """The sender sent more than the receiver had granted."""


class DrainingError(RefusedError, code="DRAINING"):
    """The worker is about to stop and takes nothing new; try again later or elsewhere."""


class NotReadyError(RefusedError, code="NOT_READY"):
    """The worker has no assignment yet; the same request is taken later."""


class UnauthenticatedError(RefusedError, code="UNAUTHENTICATED"):
    """The worker does not know the client: it showed no token, or none of the worker's."""


class PermissionDeniedError(RefusedError, code="PERMISSION_DENIED"):
    """The worker knows the client, and does not permit the call."""


class SupersededError(RefusedError, code="SUPERSEDED"):
    """Another subscriber has taken the task over."""


class NotLocalError(RefusedError, code="NOT_LOCAL"):
    """The task lives on another worker; the message says where."""


class WrongWorkerError(RefusedError, code="WRONG_WORKER"):
    """Another worker answers at the address than the one that was meant."""


class TooManyHopsError(RefusedError, code="TOO_MANY_HOPS"):
    """Workers have passed messages on to each other too often: their assignments contradict each other."""


class StaleEpochError(RefusedError, code="STALE_EPOCH"):
    """A sink's epoch is older than one that it has published, or too far ahead of it."""


class StageGoneError(RefusedError, code="STAGE_GONE"):
    """What an attempt of a sink has staged is gone: its worker has died, or it was not chosen in time."""


class EpochTooLargeError(RefusedError, code="EPOCH_TOO_LARGE"):
    """A sink's epoch is more than a worker can stage, whatever goes out of the way."""


class UnknownRunError(RefusedError, code="UNKNOWN_RUN"):
    """A run of a sink's query has not begun at the worker: an earlier run may have published the epoch."""


class ResourceLimitError(RefusedError, code="RESOURCE_LIMIT"):
    """A bound of the receiver's configuration is reached."""


class RefusedMessagesError(RefusedError):
    """The worker has refused messages since the last flush; `refusals` lists them."""

    def __init__(self, refusals: list[str]) -> None:
        shown = "; ".join(refusals[:5]) + ("; ..." if len(refusals) > 5 else "")
        super().__init__(f"messages were refused and will not come again: {shown}")
        self.refusals = refusals


def refused(code: str, detail: str) -> RefusedError:
    """Return the error for a wire code's name (`UNKNOWN_TASK`); an unknown name gives RefusedError."""
    return _BY_CODE.get(code, RefusedError)(detail)
