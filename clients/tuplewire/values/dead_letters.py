"""Dead letters: copies of messages that consumers rejected too often, with the facts about each in headers.

Dead letters are ordinary messages to the task that a worker has as `dead_letter_task`. The worker creates
them (worker/rejections.py), the command `dead-letters` reads them, and spark/data_source.py uses the same
headers. Owns no state. Thread-safe. Design: docs/design/acking.md ("Rejected messages").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Self

from tuplewire.errors import MAX_TASK, MalformedError
from tuplewire.values.group import TaskGroup
from tuplewire.values.headers import decode_headers, encode_headers, parse_number
from tuplewire.values.message import DecodedHeaders, TaskMessage

REJECTED = "tuplewire-rejected"
"""The header with the number of rejections of a redelivered message, in decimal digits."""
DEAD = "tuplewire-dead-"
"""The prefix of the headers of dead letters."""
REASON, SOURCE, TASK, COUNT, TIME = (
    f"{DEAD}{name}" for name in ("reason", "source", "task", "count", "time")
)


def rejections_of(headers: DecodedHeaders) -> int:
    """Return the number of rejections of a message, from its headers."""
    return parse_number(headers, REJECTED) or 0


def read_key_and_headers(group: TaskGroup) -> tuple[bytes | None, DecodedHeaders]:
    """Return the key and headers of a single message. Malformed headers count as no key and no headers."""
    try:
        return decode_headers(group.header_data)
    except MalformedError:
        return None, ()


def with_rejections(group: TaskGroup, count: int) -> TaskGroup:
    """Return a single message as it is redelivered after `count` rejections."""
    key, headers = read_key_and_headers(group)
    return group.with_headers([encode_headers(key, [*_others(headers), (REJECTED, str(count).encode())])])


def dead_letter(group: TaskGroup, task: int, count: int, reason: str, now_micros: int) -> TaskGroup:
    """Return a single message as a dead letter to `task`. `now_micros` is in microseconds since 1970."""
    key, headers = read_key_and_headers(group)
    time = datetime.fromtimestamp(now_micros / 1e6, UTC).isoformat()
    source = "" if group.source is None else str(group.source)
    facts = {REASON: reason, SOURCE: source, TASK: str(group.task), COUNT: str(count), TIME: time}
    encoded = ((name, value.encode(errors="replace")) for name, value in facts.items() if value)
    return replace(group.with_headers([encode_headers(key, (*_others(headers), *encoded))]), task=task)


def _others(headers: DecodedHeaders) -> list[tuple[str, bytes | None]]:
    # The sender's headers, without the facts about earlier rejections.
    return [each for each in headers if each[0] != REJECTED and not each[0].startswith(DEAD)]


@dataclass(frozen=True, slots=True)
class DecodedDeadLetter:
    """A dead letter: the original message, its task and source, and its number of rejections.

    Attributes:
        id: Eight hexadecimal digits, which are the same at every read.
        source: None if the sender is not a task.
        reason: The reason of the last rejection.
        time: The time at which the message became a dead letter, in ISO 8601 and UTC.
        redelivered: True if the dead letter may be a duplicate.
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
        """Decode a dead letter. Return None if the message is not a dead letter."""
        try:
            headers = letter.headers
        except MalformedError:
            return None
        task = parse_number(headers, TASK)
        if task is None or task > MAX_TASK:
            return None
        by_name = {name: value or b"" for name, value in headers}
        text = {name: value.decode(errors="replace") for name, value in by_name.items()}
        facts = (*(by_name.get(name, b"") for name in (TASK, SOURCE, COUNT, REASON, TIME)), letter.message)
        return cls(
            blake2b(b"\0".join(facts), digest_size=4).hexdigest(),
            task,
            parse_number(headers, SOURCE),
            parse_number(headers, COUNT) or 0,
            text.get(REASON, ""),
            text.get(TIME, ""),
            TaskMessage(task, letter.message, key=letter.key, headers=_others(headers)),
            redelivered,
        )
