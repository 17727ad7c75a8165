"""What a consumer says of messages that it cannot process."""

from __future__ import annotations

from dataclasses import dataclass

MAX_AFTER_SECONDS = 7 * 86_400
MAX_REASON = 1000
"""The characters of a reason; what is longer is cut."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """One message that is rejected.

    number: counts a consumer's rejections of the task, from 1. sequence: the message's. after_seconds: it
    comes again no sooner. wait: what follows it in the queue comes again behind it.
    """

    number: int
    sequence: int
    after_seconds: float
    reason: str
    wait: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """All rejections of a task up to a number are done.

    received: delivery goes on after this sequence, for a consumer that waits for the answer.
    """

    task: int
    number: int
    received: int
