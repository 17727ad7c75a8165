"""Dead letters: copies of messages that consumers rejected too often, with what is told of them in headers.

They are ordinary messages of the task that a worker has as `dead_letter_task`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Self

from tuplewire.errors import MalformedError
from tuplewire.values.group import TaskGroup
from tuplewire.values.headers import decode_headers, encode_headers
from tuplewire.values.message import Headers, ReadHeaders, TaskMessage

REJECTED = "tuplewire-rejected"
"""The header of a message that comes again: how often consumers have rejected it, in decimal digits."""
DEAD = "tuplewire-dead-"
"""Headers of dead letters begin with it."""
REASON, SOURCE, TASK, COUNT, TIME = (
    f"{DEAD}{name}" for name in ("reason", "source", "task", "count", "time")
)


def rejections_of(headers: ReadHeaders) -> int:
    """Return how often consumers have rejected a message, by its headers."""
    return _number(dict(headers).get(REJECTED)) or 0


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else None


def headers_of(group: TaskGroup) -> tuple[bytes | None, ReadHeaders]:
    """Return key and headers of a single message; what is no such thing counts as none."""
    try:
        return decode_headers(group.header_data)
    except MalformedError:
        return None, ()


def again(group: TaskGroup, count: int) -> TaskGroup:
    """Return a single message as it comes again after so many rejections."""
    key, headers = headers_of(group)
    return _with_headers(group, key, [*_others(headers), (REJECTED, str(count).encode())])


def dead_letter(group: TaskGroup, task: int, count: int, reason: str, now_micros: int) -> TaskGroup:
    """Return a single message as a dead letter to a task. now_micros: since 1970."""
    key, headers = headers_of(group)
    time = datetime.fromtimestamp(now_micros / 1e6, UTC).isoformat()
    source = "" if group.source is None else str(group.source)
    facts = {REASON: reason, SOURCE: source, TASK: str(group.task), COUNT: str(count), TIME: time}
    told = ((name, value.encode(errors="replace")) for name, value in facts.items() if value)
    return replace(_with_headers(group, key, (*_others(headers), *told)), task=task)


def _others(headers: ReadHeaders) -> list[tuple[str, bytes | None]]:
    return [each for each in headers if each[0] != REJECTED and not each[0].startswith(DEAD)]


def _with_headers(group: TaskGroup, key: bytes | None, headers: Headers) -> TaskGroup:
    encoded = encode_headers(key, headers)
    return replace(group, header_lengths=len(encoded).to_bytes(4, "little"), header_data=encoded)


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead letter, read.

    id: eight digits that are the same whenever it is read. task: the one to which the message was. source:
    the task that sent it; None: no task. time: when it became a dead letter, in ISO 8601 and UTC. message: as
    it was sent. redelivered: True if it may be a copy.
    """

    id: str
    task: int
    source: int | None
    count: int
    reason: str
    time: str
    message: TaskMessage
    redelivered: bool = False

    @classmethod
    def read(cls, letter: TaskMessage, *, redelivered: bool = False) -> Self | None:
        """Read one; None for a message that is no dead letter."""
        try:
            told = {name: value or b"" for name, value in letter.headers}
        except MalformedError:
            return None
        task = _number(told.get(TASK))
        if task is None:
            return None
        text = {name: value.decode(errors="replace") for name, value in told.items()}
        facts = (*(told.get(name, b"") for name in (TASK, SOURCE, COUNT, REASON, TIME)), letter.message)
        return cls(
            blake2b(b"\0".join(facts), digest_size=4).hexdigest(),
            task,
            _number(told.get(SOURCE)),
            _number(told.get(COUNT)) or 0,
            text.get(REASON, ""),
            text.get(TIME, ""),
            TaskMessage(task, letter.message, key=letter.key, headers=_others(letter.headers)),
            redelivered,
        )
