"""The contract of all runtimes of topologies, as one set of tests, and the components used by the tests.

A runtime's test file has a class that inherits from RuntimeContract and defines a fixture `runtime`. The
components write events to files in a directory, because they may run in another process; see Notes.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    FailedError,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

SECONDS = 120.0
COUNT = 400


class Notes:
    """One file of text lines for each subject, shared by the test and all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, subject: str, line: object) -> None:
        with (self.folder / subject).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def read(self, subject: str) -> list[str]:
        """Return the lines so far."""
        path = self.folder / subject
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def count(self, subject: str) -> int:
        """Return the number of lines so far."""
        return len(self.read(subject))


class Numbers(Spout):
    """Emits `count` numbers (None: no end), and failed ones once more; records its calls, and may pause."""

    outputs = ("number",)

    def __init__(self, notes: Notes, count: int | None = COUNT, pause: float = 0.0) -> None:
        self.notes = notes
        self.count = count
        self.pause = pause
        self.next = 0
        self.again: list[int] = []
        self.paused_until = 0.0

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.emitted = context.register_counter("numbers_emitted")

    def activate(self) -> None:
        self.notes.add("activations", "activate")

    def deactivate(self) -> None:
        self.notes.add("inactive-after", self.next)
        self.notes.add("activations", "deactivate")

    def next_tuple(self) -> None:
        if time.monotonic() < self.paused_until:
            return
        if self.again:
            number = self.again.pop()
        else:
            number = self.next
            self.next += 1
            self.emitted.inc()
            if self.pause and self.next % 10 == 0:
                self.paused_until = time.monotonic() + self.pause
        self.collector.emit([number], message_id=number)

    @property
    def exhausted(self) -> bool:
        return self.next == self.count and not self.again

    def ack(self, message_id: int) -> None:
        self.notes.add("acked", message_id)

    def fail(self, message_id: int) -> None:
        self.notes.add("failed", message_id)
        self.again.append(message_id)

    def close(self) -> None:
        self.notes.add("emitted", self.next)


class Pass(BasicBolt):
    """Forwards its input; records it, and its own preparation and cleanup."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        del conf
        self.task = context.task
        self.notes.add("prepared", context.task)
        self.notes.add(f"process-{context.task}", os.getpid())
        self.passed = context.register_counter("numbers_passed")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        self.notes.add(f"passed-{self.task}", message["number"])
        self.passed.inc()
        collector.emit(message.values)

    def cleanup(self) -> None:
        self.notes.add("cleaned", self.task)


class FailOnce(Pass):
    """Fails each tenth number at its first execution."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        number = message["number"]
        if number % 10 == 0 and str(number) not in self.notes.read("refused"):
            self.notes.add("refused", number)
            raise FailedError
        super().execute(message, collector)


class Raise(Pass):
    """Raises at each hundredth number."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] % 100 == 0:
            raise ValueError(f"no place for {message['number']}")
        super().execute(message, collector)


class Grow(Pass):
    """Makes each tenth number large at its first execution: too large for a message, but not in a worker."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        number = message["number"]
        if number % 10 == 0 and str(number) not in self.notes.read("grown"):
            self.notes.add("grown", number)
            collector.emit([number + LARGE])
        else:
            super().execute(message, collector)


LARGE = 1 << 13_000
"""A number of 1.6 KB, with fewer digits than the limit of Python's str()."""


class Unhashable(Numbers):
    """Emits numbers with message ids that cannot be hashed."""

    def next_tuple(self) -> None:
        self.next += 1
        self.collector.emit([self.next], message_id=[self.next])


class Stall(Pass):
    """Stalls once, for longer than a send may wait."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == COUNT // 10:
            time.sleep(1.0)  # like user code that waits for a database
        super().execute(message, collector)


class Count(BasicBolt):
    """Counts numbers, and emits the counts on a tick."""

    outputs = ("total", "different")

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            collector.emit([self.seen.total(), len(self.seen)])
            self.seen.clear()
        else:
            self.seen[message["number"]] += 1


class Total(BasicBolt):
    """Adds up the counts, and emits the sums on a tick; its last tick must follow the last counts."""

    outputs = ("total", "different")

    def __init__(self) -> None:
        self.sums = [0, 0]

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            collector.emit(self.sums)
        else:
            self.sums = [self.sums[0] + message["total"], self.sums[1] + message["different"]]


def passing(spout: Spout, bolt: Bolt | BasicBolt) -> Topology:
    """Return a topology: spout 1, "pass" 2 and 3, and "sums" 4 and 5 and "total" 6, which emit at the end."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("pass", bolt, 2).fields_grouping("numbers", "number")
    count = builder.set_bolt("sums", Count(), 2).fields_grouping("pass", "number")
    for each in (count, builder.set_bolt("total", Total()).global_grouping("sums")):
        each.add_configuration("topology.tick.tuple.freq.secs", 3600)
    return builder.create_topology()


class Running(ABC):
    """A running topology, in any runtime. running: as the runtime returned it."""

    running: Any

    @abstractmethod
    def finish(self) -> list[tuple[int, int]]:
        """Wait until the topology ends; return the tuples of "total". Raises the topology's error."""

    @abstractmethod
    def counts(self, component: str) -> Counter[str]:
        """Return the numbers of emitted, executed, acked and failed tuples of a component."""

    @abstractmethod
    def metric(self, name: str) -> float:
        """Return the sum of a metric over the runtime's /metrics, or over its equivalent."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the topology after all emitted tuples are processed."""

    def dead_letters(self) -> list[tuple[int, int, str]]:
        """Return the number, the tries and the reason of each dead letter, after the end of the topology."""
        raise NotImplementedError

    def activate(self) -> None:
        self.running.activate()

    def deactivate(self) -> None:
        self.running.deactivate()

    def rest(self) -> None:  # noqa: B027 - a Spark job has no such call
        """Wait until an inactive topology is idle, if the runtime supports it."""

    def move(self, task: int) -> None:
        """Move a task to the other worker."""
        raise NotImplementedError

    def kill(self, task: int, notes: Notes) -> None:
        """Kill the worker of a task, as in a crash; it is restarted."""
        os.kill(int(notes.read(f"process-{task}")[-1]), signal.SIGKILL)


class Runtime(ABC):
    """Runs topologies with two workers; `again`: after a lost process, the whole topology starts over."""

    again = False

    @abstractmethod
    def run(self, topology: Topology, **conf: Any) -> AbstractContextManager[Running]:
        """Run a topology until the block ends."""


FOLLOWED = {"topology.max.spout.pending": 50, "topology.message.timeout.secs": 3}


class Contract:
    """Base of the contracts below. A subclass defines a fixture `runtime`."""

    @pytest.fixture
    def notes(self, tmp_path: Path) -> Notes:
        return Notes(tmp_path)


class RuntimeContract(Contract):
    """The contract of every runtime."""

    @pytest.mark.parametrize("pause", [0.0, 0.03], ids=["busy", "pausing"])
    def test_it_is_over_when_all_is_processed(self, runtime: Runtime, notes: Notes, pause: float) -> None:
        """finish() waits for every tuple, even if a spout pauses; each task gets each tuple once, ordered."""
        with runtime.run(passing(Numbers(notes, pause=pause), Pass(notes))) as running:
            assert running.finish() == [(COUNT, COUNT)]
            done = running.counts("pass")
            assert (done["executed"], done["emitted"]) == (COUNT, COUNT)
        assert sorted(notes.read("prepared")) == sorted(notes.read("cleaned"))
        assert notes.read("activations")[:1] == ["activate"]
        check_order(notes)

    def test_a_spout_hears_of_every_tuple(self, runtime: Runtime, notes: Notes) -> None:
        """Each tuple is acked once, and the statistics include it."""
        with runtime.run(passing(Numbers(notes), Pass(notes)), **FOLLOWED) as running:
            running.finish()
            told = running.counts("numbers")
        assert sorted(map(int, notes.read("acked"))) == list(range(COUNT))
        assert (told["acked"], told["failed"]) == (COUNT, 0)

    def test_what_fails_can_be_emitted_again(self, runtime: Runtime, notes: Notes) -> None:
        """A failed tuple is reported to its spout immediately; after the second attempt, it is acked."""
        with runtime.run(passing(Numbers(notes), FailOnce(notes)), **FOLLOWED) as running:
            assert running.finish() == [(COUNT, COUNT)]
            told = running.counts("numbers")
        assert sorted(map(int, notes.read("failed"))) == list(range(0, COUNT, 10))
        assert sorted(map(int, notes.read("acked"))) == list(range(COUNT))
        assert (told["acked"], told["failed"]) == (COUNT, COUNT // 10)

    def test_a_bolt_that_stalls_makes_its_spout_wait(self, runtime: Runtime, notes: Notes) -> None:
        """While a bolt is stalled, the others wait without a time limit; no tuple fails or is lost."""
        few = {
            "topology.executor.receive.buffer.size": 16,
            "tuplewire.session.max_pending_task_messages": 16,
            "tuplewire.session.max_block_seconds": 0.2,
        }
        many = 8 * COUNT  # more than the capacity of all queues
        with runtime.run(passing(Numbers(notes, many), Stall(notes)), **few) as running:
            assert running.finish() == [(many, many)]
        assert sorted(map(int, notes.read("acked"))) == list(range(many))

    def test_an_error_ends_it(self, runtime: Runtime, notes: Notes) -> None:
        """finish() raises the exception of a bolt, with its component and reason."""
        with (
            runtime.run(passing(Numbers(notes, count=None), Raise(notes)), **FOLLOWED) as running,
            pytest.raises(Exception, match="of 'pass': ValueError: no place for"),
        ):
            running.finish()

    def test_a_tuple_above_the_size_limit_fails(self, runtime: Runtime, notes: Notes) -> None:
        """With the policy `skip`, a tuple that is too large for another worker fails, and is counted."""
        conf = {
            **FOLLOWED,
            "topology.message.timeout.secs": 60,
            "topology.max.spout.pending": 20,  # the reports to the acker tasks have to be small, too
            "topology.error.policy": "skip",
            "tuplewire.session.max_message_bytes": 1024,
        }
        with runtime.run(passing(Numbers(notes), Grow(notes)), **conf) as running:
            assert running.finish() == [(COUNT, COUNT)]
            assert running.metric('tuplewire_task_errors_total{component="pass"') == notes.count("failed")
        assert 0 < notes.count("failed") <= notes.count("grown") == COUNT // 10
        assert sorted(map(int, notes.read("acked"))) == list(range(COUNT))

    def test_a_message_id_that_cannot_be_hashed(self, runtime: Runtime, notes: Notes) -> None:
        """A spout that emits a tuple with such an id gets an error that names the id."""
        with (
            runtime.run(passing(Unhashable(notes), Pass(notes)), **FOLLOWED) as running,
            pytest.raises(Exception, match=r"of 'numbers': MessageError: the message id \[1\] cannot"),
        ):
            running.finish()

    def test_user_metrics(self, runtime: Runtime, notes: Notes) -> None:
        """The metrics contain the counters of spouts and bolts, and the built-in counters of executors."""
        with runtime.run(passing(Numbers(notes), Pass(notes))) as running:
            running.finish()
            assert running.metric("tuplewire_user_numbers_emitted_total") == COUNT
            assert running.metric("tuplewire_user_numbers_passed_total") == COUNT
            assert running.metric('tuplewire_executed_tuples_total{component="pass"') == COUNT

    def test_stopping_loses_nothing(self, runtime: Runtime, notes: Notes) -> None:
        """A topology without end that is stopped processes every emitted tuple."""
        with runtime.run(passing(Numbers(notes, count=None), Pass(notes)), **FOLLOWED) as running:
            eventually(lambda: notes.count("acked") > COUNT, SECONDS)
            running.stop()
        (emitted,) = map(int, notes.read("emitted"))
        assert sorted(passed(notes)) == list(range(emitted))
        assert notes.read("activations") == ["activate", "deactivate"]

    def test_deactivate_and_activate(self, runtime: Runtime, notes: Notes) -> None:
        """An inactive topology emits nothing, processes tuples in flight, and resumes at the next number."""
        with runtime.run(passing(Numbers(notes, count=None), Pass(notes)), **FOLLOWED) as running:
            eventually(lambda: notes.count("acked") > COUNT, SECONDS)
            running.deactivate()
            eventually(lambda: notes.read("inactive-after"), SECONDS)
            emitted = int(notes.read("inactive-after")[0])
            eventually(lambda: notes.count("acked") == emitted, SECONDS)
            running.rest()
            running.activate()
            eventually(lambda: notes.count("acked") > emitted + COUNT, SECONDS)
            assert notes.read("activations") == ["activate", "deactivate", "activate"]

    def test_a_lost_process_comes_back(self, runtime: Runtime, notes: Notes) -> None:
        """If the process of a bolt dies, its tuples fail and are emitted again; every number arrives."""
        spout = Numbers(notes, pause=0.02)
        soon = {**FOLLOWED, "topology.message.timeout.secs": 1}
        with runtime.run(passing(spout, Pass(notes)), **soon) as running:
            eventually(lambda: notes.count("acked") > 10, SECONDS)
            running.kill(FIRST_PASS, notes)
            totals = running.finish()
        if runtime.again:
            assert totals == [(COUNT, COUNT)]
        assert set(passed(notes)) == set(range(COUNT))
        assert set(map(int, notes.read("acked"))) == set(range(COUNT))


class KeepsLetters(Contract):
    """The program that started the topology can read the dead letters."""

    def test_dead_letters(self, runtime: Runtime, notes: Notes) -> None:
        """With the policy, a tuple that a bolt cannot process becomes a dead letter; the others arrive."""
        policy = {"topology.error.policy": "dead_letter", "topology.error.tries": 2}
        with runtime.run(passing(Numbers(notes), Raise(notes)), **FOLLOWED, **policy) as running:
            refused = COUNT // 100
            assert running.finish() == [(COUNT - refused, COUNT - refused)]
            found = running.dead_letters()
        expected = [(number, 2, f"ValueError: no place for {number}") for number in range(0, COUNT, 100)]
        assert sorted(found) == expected
        assert not notes.read("failed")


class MovesTasks(Contract):
    """Tasks move between workers."""

    def test_a_task_moves(self, runtime: Runtime, notes: Notes) -> None:
        """A bolt that moves while tuples flow receives all of them, each once and in order."""
        with runtime.run(passing(Numbers(notes, count=None), Pass(notes)), **FOLLOWED) as running:
            for _ in range(2):
                seen = notes.count("acked")
                eventually(lambda: notes.count("acked") > seen + COUNT, SECONDS)  # noqa: B023 - called here
                running.move(FIRST_PASS)
            running.stop()
        check_order(notes)
        assert not notes.read("failed")
        assert notes.read("prepared").count(str(FIRST_PASS)) == 3


FIRST_PASS = 2


def passed(notes: Notes) -> list[int]:
    """Return the numbers that both tasks of "pass" have recorded."""
    return [int(line) for path in notes.folder.glob("passed-*") for line in notes.read(path.name)]


def check_order(notes: Notes) -> None:
    """Fail unless each task of "pass" received its numbers in order, and every number once."""
    for path in notes.folder.glob("passed-*"):
        numbers = list(map(int, notes.read(path.name)))
        assert numbers == sorted(numbers)
    seen = passed(notes)
    assert sorted(seen) == list(range(len(seen)))


def typed(rows: Iterable[Sequence[Any]]) -> list[tuple[int, int]]:
    """Return pairs of numbers: Spark returns fields as strings."""
    return [(int(first), int(second)) for first, second in rows]


def counted(executors: Sequence[Any], component: str) -> Counter[str]:
    """Add up the statistics of a component's executors."""
    found: Counter[str] = Counter()
    for each in executors:
        if each.component == component:
            counts = each.counts
            found.update(
                emitted=counts.emitted, executed=counts.executed, acked=counts.acked, failed=counts.failed
            )
    return found
