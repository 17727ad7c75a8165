"""The errors that all parts of Tuplewire share. The modules for Spark and topologies add their own.

::

    TuplewireError
    ├── ConfigError             an invalid setting (also a ValueError)
    │   └── TopologyError           an inconsistent topology
    ├── MessageError            an invalid message, batch or column (also a ValueError)
    │   ├── InvalidTaskError        a task id outside its range
    │   ├── MessageTooLargeError    a message above the limit
    │   ├── UnsupportedValueError   a value of a type that cannot be sent
    │   └── MalformedError          inconsistent bytes or columns
    │       └── MalformedTupleError     bytes that are not a tuple of the topology
    ├── ClosedError             a closed object, or one of another process
    ├── BufferFullError         the bound on pending messages is reached
    ├── WaitTimeoutError        the timeout of a wait has passed (also a TimeoutError)
    │   ├── FlushTimeoutError       messages without acknowledgement
    │   └── NoAnswerError           a request without an answer
    │       └── NoConsumerError         no program receives requests to the task
    ├── AnswerError             the error that was sent as the answer to a request
    ├── BindError               an address to listen on is in use or not local
    ├── UnreachableError        no answer at the address, or a broken connection
    ├── TeamError               a call of a team failed; each later call raises the same error
    │   ├── TeamTimeoutError        a rank has not called in time (also a TimeoutError)
    │   ├── RankLostError           the process of a rank has exited, or messages are lost
    │   ├── TeamAbortedError        the block of another rank ended with an error
    │   ├── TeamMismatchError       a rank has made another call, or has left
    │   └── TeamChangedError        another process has joined with a rank of the team
    └── RefusedError            the peer refused the request; `code` names the reason
        ├── ProtocolVersionError    ProtocolError           WrongTopologyError      StaleIncarnationError
        ├── StaleAssignmentError    UnknownTaskError        TaskNotLocalError       WrongWorkerError
        ├── NotReadyError           DrainingError           UnauthenticatedError    PermissionDeniedError
        ├── SequenceGapError        CreditExceededError     PayloadTooLargeError    ResourceLimitError
        ├── SupersededError         TooManyHopsError        StaleEpochError         StagedDataLostError
        └── EpochTooLargeError      UnknownRunError         RefusedMessagesError (several messages)

Users: all parts, and programs that handle errors. RefusedError and its subclasses correspond to the wire's
ErrorCode. Owns the table of error codes. Thread-safe.
Design: docs/design/sessions.md ("Refusals and the ledger").
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

MIN_TASK = 0
MAX_TASK = 2**31 - 1


class TuplewireError(Exception):
    """The base class of Tuplewire's own errors. They pickle with their attributes and cause."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {**self.__dict__, "__cause__": self.__cause__}
        state = {name: _picklable(value) for name, value in attributes.items()}
        return _new_error, (type(self),), {**state, "args": self.args}


def _picklable(value: Any) -> Any:
    """Return the value, or its text if it cannot be pickled: such an error would break a process pool."""
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - bytes from this process
    except Exception:  # noqa: BLE001 - the user's objects may raise anything
        text = f"{type(value).__name__}: {value}"
        return TuplewireError(text) if isinstance(value, BaseException) else text
    return value


def _new_error(kind: type[TuplewireError]) -> TuplewireError:
    return kind.__new__(kind)  # without its constructor, which may have other arguments


def fresh_copy(error: TuplewireError) -> TuplewireError:
    """Return a copy of a stored error: each raise adds frames to its traceback, which keep payloads alive."""
    copied = _new_error(type(error))
    for name in (*error.__dict__, "args", "__cause__", "__suppress_context__", "__traceback__"):
        setattr(copied, name, getattr(error, name))
    return copied


def to_tuplewire_error(error: BaseException) -> TuplewireError:
    """Convert the error that ended a thread to a TuplewireError."""
    if isinstance(error, TuplewireError):
        return error
    wrapped = TuplewireError(f"a defect ended a thread of Tuplewire: {error!r}; please report it")
    wrapped.__cause__ = error
    return wrapped


class ConfigError(TuplewireError, ValueError):
    """A setting is missing, unknown or outside its range."""


class TopologyError(ConfigError):
    """A topology names a missing part, or its declarations contradict each other."""


class MessageError(TuplewireError, ValueError):
    """A message, batch or column is invalid; none of its messages was sent."""


class InvalidTaskError(MessageError):
    """A task id is outside its range."""


class MessageTooLargeError(MessageError):
    """A message exceeds the limit; `task`, `size_bytes` and `limit_bytes` have the numbers."""

    def __init__(self, task: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"a message of {size_bytes} bytes to task {task} exceeds the limit of {limit_bytes} bytes; "
            "split it, or raise max_message_bytes at the worker (in programs, also of the client)"
        )
        self.task = task
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class UnsupportedValueError(MessageError):
    """A value in a tuple, or in a call of a team, has a type that cannot be sent."""


class MalformedError(MessageError):
    """Bytes or columns are inconsistent."""


class MalformedTupleError(MalformedError):
    """Bytes are not a tuple of this topology; the error names the field if one was reached."""


class ClosedError(TuplewireError):
    """The object is closed, or belongs to another process."""


class BufferFullError(TuplewireError):
    """The bound on pending messages is reached, and the timeout, if any, has passed."""


class WaitTimeoutError(TuplewireError, TimeoutError):
    """The timeout of a wait has passed, for example without a message."""


class FlushTimeoutError(WaitTimeoutError):
    """Some messages were not acknowledged in time, and may still arrive.

    After flush() they stay pending. close() has dropped them.
    """


class NoAnswerError(WaitTimeoutError):
    """A request was not answered in time. It may still be processed; a late answer is dropped.

    Attributes:
        task: The task of the request.
        worker_id: The id of the task's worker; empty if there is none, None if unknown.
        queued_messages: The number of the task's unread messages; None if unknown.
        oldest_seconds: The age of the oldest unread message, in seconds; None if unknown.
    """

    def __init__(
        self,
        text: str,
        task: int,
        worker_id: str | None = None,
        queued_messages: int | None = None,
        oldest_seconds: float | None = None,
    ) -> None:
        super().__init__(text)
        self.task = task
        self.worker_id = worker_id
        self.queued_messages = queued_messages
        self.oldest_seconds = oldest_seconds


class NoConsumerError(NoAnswerError):
    """The task of a request had no consumer or worker for 5 seconds. A queued request stays queued."""


class AnswerError(TuplewireError):
    """The answer to a request is an error; `text` is its text, and `task` the task of the request."""

    def __init__(self, text: str, task: int) -> None:
        super().__init__(f"task {task} has answered with an error: {text}")
        self.text = text
        self.task = task


class BindError(TuplewireError):
    """An address to listen on is in use, or is not an address of this machine."""


class UnreachableError(TuplewireError):
    """No process answers at the address, or the connection was broken."""


class TeamError(TuplewireError):
    """A call of a team failed, and the team is broken: leave it, and create a new Team."""


class TeamTimeoutError(TeamError, TimeoutError):
    """Some ranks did not make the call, or did not join, within the timeout."""


class RankLostError(TeamError):
    """The process of a rank has exited without leaving the team, or messages between ranks are lost."""


class TeamAbortedError(TeamError):
    """The block of another rank ended with an error; the text contains its type and text."""


class TeamMismatchError(TeamError):
    """A rank has made a different call, or has left the team."""


class TeamChangedError(TeamError):
    """Another process has joined with a rank of the team, for example a new attempt of a Spark stage."""


_CLASS_BY_CODE: dict[str, type[RefusedError]] = {}


class RefusedError(TuplewireError):
    """The peer refused a request.

    Attributes:
        code: The name of the wire's ErrorCode.
        owner: The address of the worker to use instead; empty if unknown.
        worker_id: The id of that worker; empty if unknown.
    """

    code: ClassVar[str] = "UNSPECIFIED"

    def __init_subclass__(cls, code: str = "") -> None:
        if code:
            cls.code = code
            _CLASS_BY_CODE[code] = cls

    def __init__(self, detail: str, owner_address: str = "", worker_id: str = "") -> None:
        super().__init__(detail)
        self.owner = owner_address
        self.worker_id = worker_id


class ProtocolVersionError(RefusedError, code="PROTOCOL_VERSION"):
    """The two sides have no protocol version in common. Update both to the same release."""


class ProtocolError(RefusedError, code="MALFORMED"):
    """The protocol was violated, because of a defect or incompatible releases."""


class WrongTopologyError(RefusedError, code="WRONG_TOPOLOGY"):
    """The worker serves another topology."""


class StaleIncarnationError(RefusedError, code="STALE_INCARNATION"):
    """A newer process with the same sender or consumer id has taken over. This process must stop."""


class StaleAssignmentError(RefusedError, code="STALE_ASSIGNMENT"):
    """The sender uses an older assignment than the receiver."""


class UnknownTaskError(RefusedError, code="UNKNOWN_TASK"):
    """The worker's assignment has no such task."""


class PayloadTooLargeError(RefusedError, code="MESSAGE_TOO_LARGE"):
    """A message, with its key and headers, exceeds the receiver's limit."""


class SequenceGapError(RefusedError, code="SEQUENCE_GAP"):
    """A frame did not follow the last accepted one."""


class CreditExceededError(RefusedError, code="CREDIT_EXCEEDED"):
    """The sender sent more than the receiver had granted."""


class DrainingError(RefusedError, code="DRAINING"):
    """The worker is shutting down and accepts no new messages. Retry later, or at another worker."""


class NotReadyError(RefusedError, code="NOT_READY"):
    """The worker cannot serve the request yet, such as without an assignment. Retry it later."""


class UnauthenticatedError(RefusedError, code="UNAUTHENTICATED"):
    """The worker cannot authenticate the client: it sent no token, or an unknown one."""


class PermissionDeniedError(RefusedError, code="PERMISSION_DENIED"):
    """The worker has authenticated the client, but does not permit the call."""


class SupersededError(RefusedError, code="SUPERSEDED"):
    """Another consumer has the task, or has taken it over."""


class TaskNotLocalError(RefusedError, code="TASK_NOT_LOCAL"):
    """The worker does not own the task. `owner` and `worker_id` name the owner, if known."""


class WrongWorkerError(RefusedError, code="WRONG_WORKER"):
    """The worker at the address is not the expected one."""


class TooManyHopsError(RefusedError, code="TOO_MANY_HOPS"):
    """Workers have forwarded messages too often, because their assignments contradict each other."""


class StaleEpochError(RefusedError, code="STALE_EPOCH"):
    """A sink's epoch is too old or too far ahead, or a task has already received it with other messages."""


class StagedDataLostError(RefusedError, code="STAGED_DATA_LOST"):
    """The staged messages of a sink's attempt are lost: its worker failed, or it was not chosen in time."""


class EpochTooLargeError(RefusedError, code="EPOCH_TOO_LARGE"):
    """A sink's epoch exceeds the space for staged messages, even if all other attempts are removed."""


class UnknownRunError(RefusedError, code="UNKNOWN_RUN"):
    """This run of a sink's query has not begun at the worker. An earlier run may have published the epoch."""


class ResourceLimitError(RefusedError, code="RESOURCE_LIMIT"):
    """A limit in the receiver's configuration is reached."""


class RefusedMessagesError(RefusedError):
    """The worker has refused messages since the last flush; `refusals` lists them."""

    def __init__(self, refusals: list[str]) -> None:
        shown = "; ".join(refusals[:5]) + ("; ..." if len(refusals) > 5 else "")
        super().__init__(f"messages were refused; correct the cause, and send them again: {shown}")
        self.refusals = refusals


def refusal_error(code: str, detail: str, owner: str = "", worker_id: str = "") -> RefusedError:
    """Return the error for the name of a wire code (`UNKNOWN_TASK`), or RefusedError for an unknown name."""
    return _CLASS_BY_CODE.get(code, RefusedError)(detail, owner, worker_id)
