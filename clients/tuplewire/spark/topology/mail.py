"""What the PySpark tasks of a topology, and the program that submitted it, tell each other.

A mail travels as a message of the workers that carry the tuples, to a task id of its own for each PySpark
task. It is of one run and one generation, and whoever gets one of another throws it away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from tuplewire.errors import MalformedError
from tuplewire.topology.serial.packing import pack_values
from tuplewire.topology.serial.unpacking import FAULTS, read_value

SUBMITTER = -1
"""The rank, in a mail, of the program that submitted the topology."""


class MailKind(StrEnum):
    """What a mail is about."""

    READY = "ready"
    """To the coordinator: every task here is open."""
    REPORT = "report"
    """To the coordinator: a wave, a ProcessReport, and what was emitted and executed so far."""
    STOP = "stop"
    """To the coordinator, from the submitter: drain; and whether the output is still wanted."""
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    TICK = "tick"
    ASK = "ask"
    """From the coordinator: report, with this wave."""
    CLOSE = "close"
    """From the coordinator: the topology is over."""
    ABORT = "abort"
    """From the coordinator: another PySpark task has failed."""
    BEGUN = "begun"
    """To the submitter: a generation begins; where its coordinator is."""
    PROGRESS = "progress"
    """To the submitter: what was emitted and executed so far."""
    CLOSED = "closed"
    """To the submitter: a PySpark task has ended in good order."""


@dataclass(frozen=True, slots=True)
class Mail:
    """One of them. rank: of the PySpark task that wrote it."""

    run: str
    generation: int
    rank: int
    kind: MailKind
    values: tuple[Any, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as a payload."""
        return pack_values([self.run, self.generation, self.rank, str(self.kind), *self.values])

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Read what to_bytes() wrote; MalformedError for what is no mail."""
        try:
            (run, generation, rank, kind, *values), _ = read_value(payload, 0)
            return cls(run, generation, rank, MailKind(kind), tuple(values))
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes are no mail of a topology: {error}") from error
