"""Rejections: a consumer's report of messages that it cannot process, and the worker's answer."""

from __future__ import annotations

from dataclasses import dataclass

MAX_AFTER_SECONDS = 7 * 86_400
MAX_REASON = 1000
"""The maximum length of a reason in characters. Longer reasons are truncated."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rejection of one message.

    Attributes:
        number: Counts the consumer's rejections of messages of the task, from 1.
        sequence: The sequence of the message.
        after_seconds: The minimum delay before the message is redelivered.
        reason: The consumer's reason, as text.
        wait: True if later messages of the task are redelivered behind this one.
    """

    number: int
    sequence: int
    after_seconds: float
    reason: str
    wait: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The worker has processed all rejections of a task up to `number`.

    If the consumer waits for the answer, delivery continues after the sequence `received`.
    """

    task: int
    number: int
    received: int
