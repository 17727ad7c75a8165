"""The session as a whole: sender, receiver, queues and consumer under random interleavings and faults.

`make property` runs a million steps, in pieces with one seed each. A failure prints its steps, and
`make property SEED=n` starts with the piece that failed.
"""

# ruff: noqa: D401 - a rule's docstring describes an event

from __future__ import annotations

from collections import defaultdict

import pytest
from helpers.pieces import LONG, run_pieces
from helpers.session_machine import SessionMachine
from helpers.session_parts import LARGEST_WINDOW, PREFETCH_BYTES, PREFETCH_MESSAGES, SETTINGS
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

pytestmark = pytest.mark.timeout(0 if LONG else 300)

FLOW = ("write", "arrive", "answer", "hear", "fetch", "see", "acknowledge", "hear_progress")
"""The actions that move messages from end to end."""
ACTIONS = ("connect", "subscribe", *FLOW, "hear_again", "miss", "probe", "close_unused")
FAULTS = (
    *("cut", "cut", "cut", "cut_consumer", "cut_consumer"),
    *("kill_worker", "kill_consumer", "change_consumers", "open_or_close", "resize", "crowd"),
)


class Session(SessionMachine):
    """Drives all processes, and compares them with the model."""

    @rule(actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 3)), min_size=1, max_size=12))
    def work(self, actions: list[tuple[str, int]]) -> None:
        """All processes act, in any order."""
        for action, limit in actions:
            getattr(self, action)(limit)

    @rule(rounds=st.integers(1, 3))
    def flow(self, rounds: int) -> None:
        """All connected processes do their work."""
        for _ in range(rounds):
            for action in ("connect", "subscribe", *FLOW):
                getattr(self, action)(4)

    @rule(fault=st.sampled_from(FAULTS), limit=st.integers(1, 3))
    def fault(self, fault: str, limit: int) -> None:
        """A fault or a change happens."""
        getattr(self, fault)(limit)

    @invariant()
    def adds_up(self) -> None:
        """The ledger equals the model's, in every state."""
        ledger = self.session.ledger()
        assert ledger.balanced, str(ledger)
        assert ledger.accepted == sum(self.offered.values())
        assert (ledger.acknowledged, ledger.pending) == (self.acknowledged, len(self.pending))
        assert sum(ledger.dropped.values()) == self.dropped
        assert self.session.messages == len(self.pending)
        assert self.session.size_bytes == sum(self.pending.values())

    @invariant()
    def pressure_is_told(self) -> None:
        """The sender knows the tasks that wait for credit, and the receiver the used-up windows."""
        session = self.session
        waiting = {number for number, flow in session._flows.items() if flow.waiting}
        no_credit = {number for number in waiting if not session._flows[number].has_credit}
        assert waiting - session._ready.keys() <= session.blocked_flows.keys() <= no_credit
        accounts = self.worker.session.credit.accounts
        used_up = {task for task, each in accounts.items() if each.received_messages and not each.has_credit}
        assert self.worker.tasks_without_credit == dict.fromkeys(used_up, 1)

    @invariant()
    def bounded(self) -> None:
        """The queues hold at most the granted messages, and the consumer at most its prefetch."""
        for log in self.worker.logs.values():
            assert log.queued_messages <= LARGEST_WINDOW.messages
            assert log.queued_bytes < LARGEST_WINDOW.size_bytes + SETTINGS.max_message_bytes
        held: dict[int, list[int]] = defaultdict(list)
        for arrived in self.consumer.held:
            for group in arrived.groups:
                if arrived.generation >= self.consumer.session._tasks[group.task].generation:
                    held[group.task] += group.message_sizes()
        for sizes in held.values():
            assert len(sizes) <= PREFETCH_MESSAGES
            assert sum(sizes) < PREFETCH_BYTES + SETTINGS.max_message_bytes

    def teardown(self) -> None:
        """After healing, everything settles: no message is stuck or lost."""
        if not hasattr(self, "session"):
            return  # the machine never started
        for task in list(self.worker.left):
            self._crowd(task, 0)
        self.probe(1)
        self.connect(1)
        self.subscribe(1)
        # Each round moves something: no limit is smaller than one message.
        for _ in range(40 + 4 * len(self.pending)):
            self.flow(1)
            self.adds_up()
            self.bounded()
        assert not self.pending, f"{len(self.pending)} messages are stuck"
        assert self.acknowledged + self.dropped == sum(self.offered.values())
        assert not any(log.queued_messages for log in self.worker.logs.values())


TestSession = Session.TestCase
TestSession.settings = settings(
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.skipif(not LONG, reason="takes many minutes; make property runs it")
def test_a_million_steps() -> None:
    """A long run in pieces; each piece is reproducible from its seed."""
    piece = settings(TestSession.settings, max_examples=500, stateful_step_count=200, database=None)
    run_pieces(Session, piece, 1_000_000)
