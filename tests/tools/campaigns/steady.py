"""Well-behaved traffic during a whole campaign: a producer and a consumer of numbered messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from campaigns.cluster import is_clean
from helpers.program import Program
from helpers.streams import Consumed, Load, Produced, Routes, Stream, consumer, producer
from helpers.topology import TOPOLOGY

_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.25


class Steady:
    """A producer of a load on some routes, and a consumer; every message must arrive once and in order."""

    def __init__(
        self, stack: ExitStack, routes: Routes, subscriptions: Sequence[tuple[str, Sequence[int]]], load: Load
    ) -> None:
        self.consumer = stack.enter_context(Program(consumer, TOPOLOGY, subscriptions))
        self.producer = stack.enter_context(Program(producer, TOPOLOGY, routes, load))
        self.produced = Produced({}, 0)

    def received(self) -> dict[Stream, int]:
        """Return the number of messages of each stream that have arrived."""
        consumed: Consumed = self.consumer.ask("progress")
        return consumed.received

    def finish(self, elsewhere: Callable[[], dict[Stream, int]] = dict) -> list[str]:
        """Stop both, and return every fault as text; elsewhere() has the streams of another consumer."""
        self.produced = self.producer.ask("finish")
        sent = self.produced.sent
        within(_WAIT_SECONDS, lambda: {**self.received(), **elsewhere()} == sent)
        consumed: Consumed = self.consumer.ask("finish")
        received = {**consumed.received, **elsewhere()}
        return [
            *consumed.problems,
            *(
                f"source {source} to task {task}: {sent.get((source, task), 0)} sent, {count} received"
                for (source, task), count in {**dict.fromkeys(sent, 0), **received}.items()
                if sent.get((source, task), 0) != count
            ),
            *(
                f"source {source}: {ledger}"
                for source, ledger in self.produced.ledgers.items()
                if not is_clean(ledger)
            ),
        ]


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds or the time has passed; the caller checks the result."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
