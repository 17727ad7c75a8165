"""The coordination of a topology's PySpark tasks, without Spark."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from helpers.executors import Sink, alone, pipeline, wait_idle
from helpers.logged import logged
from helpers.program import in_threads

from tuplewire.errors import ConfigError, MalformedError, TopologyError, UnreachableError
from tuplewire.spark.executors import check_slots
from tuplewire.text.events import LogRateLimiter
from tuplewire_topology import BasicBolt, Topology
from tuplewire_topology.authoring.collector import EmittedTuples
from tuplewire_topology.authoring.component import DeadLetter, TaskError
from tuplewire_topology.authoring.tuples import Stream, Tuple, TupleSource
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.coordination.control_channel import ControlInbox, ControlKind, ControlMessage
from tuplewire_topology.coordination.coordinator import (
    REPORT_TIMEOUT_SECONDS,
    Coordinator,
    Order,
    TaskUnresponsiveError,
)
from tuplewire_topology.running.statistics import Failure, ProcessReport
from tuplewire_topology.serial.serializer import from_lists, to_lists
from tuplewire_topology.spark import rows
from tuplewire_topology.spark.member import Submission
from tuplewire_topology.spark.plan import SUBMITTER_TASK, Member, Plan, RunToken, WorkerRef
from tuplewire_topology.spark.rows import (
    ROWS_KEY,
    FailedRows,
    Output,
    Rows,
    as_tuples,
    decode_failure,
    encode_failure,
)
from tuplewire_topology.spark.submit import submit_topology

RUN = "0123456789abcdef"


def mail(rank: int, kind: ControlKind, *values: object) -> ControlMessage:
    """Return a control message of the run."""
    return ControlMessage(RUN, 7, rank, kind, values)


def report(rank: int, wave: int, sent: int = 0, taken: int = 0, *, at_rest: bool = True) -> ControlMessage:
    """Return a PySpark task's report for a wave."""
    return mail(rank, ControlKind.REPORT, wave, to_lists(ProcessReport(at_rest, sent, taken)), 10, 20, 1)


class Conversation:
    """A coordinator of two PySpark tasks, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.coordinator = Coordinator(2, self.now, [["count", "other"], ["ranking"]])

    def tell(self, *mails: ControlMessage) -> list[Order]:
        """Deliver control messages, and return the orders after a second."""
        for each in mails:
            self.coordinator.handle_message(each, self.now)
        self.now += 1.0
        return [
            order
            for order in self.coordinator.next_orders(self.now)
            if order.kind is not ControlKind.PROGRESS
        ]

    def wave(self, number: int) -> list[Order]:
        """Let both tasks report that they are at rest."""
        return self.tell(report(0, number), report(1, number))


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("tuplewire.transport.host", "unknown setting 'tuplewire.transport.host' of a topology on Spark"),
        ("tuplewire.session.overflw", "did you mean tuplewire.session.overflow"),
        ("topology.workres", "did you mean topology.workers"),
    ],
)
def test_an_unknown_setting_is_not_submitted(key: str, problem: str) -> None:
    """An unknown key with a reserved prefix is an error of submit_topology()."""
    nowhere: Any = None
    with pytest.raises(ConfigError, match=problem):
        submit_topology(nowhere, topology(), conf={key: 1})


def test_from_the_opening_to_the_end() -> None:
    """Spouts start when all tasks are ready; at the end, the last ticks are sent level by level."""
    talk = Conversation()
    assert talk.tell(mail(0, ControlKind.READY)) == []
    assert talk.tell(mail(1, ControlKind.READY)) == [
        Order(ControlKind.SET_STATE, (True, True)),
        Order(ControlKind.GET_REPORT, (1,)),
    ]
    assert talk.tell(report(0, 1)) == []
    assert talk.tell(report(1, 1, at_rest=False)) == [Order(ControlKind.GET_REPORT, (2,))]
    assert talk.wave(2) == [Order(ControlKind.GET_REPORT, (3,))]
    assert talk.wave(3) == [
        Order(ControlKind.FINAL_TICK, ("count", "other")),
        Order(ControlKind.GET_REPORT, (1,)),
    ]
    assert talk.tell(report(0, 1, sent=3), report(1, 1)) == [Order(ControlKind.GET_REPORT, (2,))]
    assert talk.tell(report(0, 2, sent=3), report(1, 2)) == [Order(ControlKind.GET_REPORT, (3,))]
    for wave in (3, 4):
        assert talk.coordinator.is_done is False
        orders = talk.tell(report(0, wave, sent=3), report(1, wave, taken=3))
    assert orders == [Order(ControlKind.FINAL_TICK, ("ranking",)), Order(ControlKind.GET_REPORT, (1,))]
    assert talk.wave(1) == [Order(ControlKind.GET_REPORT, (2,))]
    assert talk.wave(2) == [Order(ControlKind.CLOSE)]
    assert talk.coordinator.is_done
    assert talk.tell() == []


def test_only_waves_at_rest_are_far_apart_after_a_restart() -> None:
    """Without exact counts, only a wave at rest is confirmed after a second, and the end follows at once."""
    coordinator = Coordinator(1, 0.0, already_open=True)
    coordinator.use_inexact_counts()
    now, due = 0.0, []
    for wave, is_idle in enumerate([False, True, False, True, True], 1):
        while Order(ControlKind.GET_REPORT, (wave,)) not in coordinator.next_orders(now):
            now += coordinator.wait_seconds(now)
        due.append(now)
        coordinator.handle_report(0, wave, ProcessReport(is_idle, 0, min(4, wave)), now)
    assert [round(then - before, 1) for before, then in pairwise(due)] == [0.0, 1.0, 0.0, 1.0]
    assert coordinator.wait_seconds(now) == 0
    assert coordinator.next_orders(now)[-1] == Order(ControlKind.CLOSE)


def test_an_inactive_topology_is_not_over() -> None:
    """While spouts are deactivated, no reports are requested; a stop still ends the topology."""
    talk = Conversation()
    talk.tell(mail(0, ControlKind.READY), mail(1, ControlKind.READY))
    assert talk.tell(mail(-1, ControlKind.STATE, False, None)) == [
        Order(ControlKind.SET_STATE, (False, True))
    ]
    assert talk.wave(1) == []
    assert talk.coordinator.wait_seconds(talk.now) > 0
    for _ in range(200):  # seconds, longer than the silence limit of a PySpark task
        assert talk.tell() == []
    assert talk.tell(mail(-1, ControlKind.STATE, True, None)) == [
        Order(ControlKind.SET_STATE, (True, True)),
        Order(ControlKind.GET_REPORT, (2,)),
    ]
    assert talk.tell(mail(-1, ControlKind.STATE, False, None)) == [
        Order(ControlKind.SET_STATE, (False, True))
    ]
    assert talk.wave(2) == []
    stopped = talk.tell(mail(-1, ControlKind.STATE, True, True))
    assert [order.kind for order in stopped] == [ControlKind.FINAL_TICK, ControlKind.GET_REPORT]


def test_failure_aborts() -> None:
    """A reported failure aborts the topology, even before all tasks are ready."""
    talk = Conversation()
    failed = ProcessReport(is_idle=False, sent=0, received=0, failure=Failure("it", "Traceback"))
    assert talk.tell(mail(1, ControlKind.REPORT, 0, to_lists(failed), 0, 0, 0)) == [Order(ControlKind.ABORT)]
    assert talk.tell(mail(0, ControlKind.READY)) == []


@pytest.mark.parametrize("opened", [False, True])
def test_silence_is_an_error(opened: bool) -> None:  # noqa: FBT001 - the two cases
    """An unresponsive PySpark task is named, whether it was ready or not."""
    talk = Conversation()
    talk.tell(mail(0, ControlKind.READY))
    if opened:
        talk.tell(mail(1, ControlKind.READY))
        talk.tell(report(0, 1))
    talk.now += REPORT_TIMEOUT_SECONDS
    with pytest.raises(TaskUnresponsiveError, match=r"^no answer for 120 s from worker\(s\) 1 \(on Spark"):
        talk.tell()


class OddOnes(BasicBolt):
    """Accepts odd numbers only, and records all numbers."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def __deepcopy__(self, _: object) -> OddOnes:
        return self

    def execute(self, message: Tuple, collector: object) -> None:  # noqa: ARG002
        self.seen.append(message["n"])
        if message["n"] % 2 == 0:
            raise ValueError("an even number")


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_row_that_always_fails_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """After the spout's number of attempts, a row is dropped with its reason, or is a dead letter."""
    monkeypatch.setattr(rows, "_log_rate", LogRateLimiter())
    seen: list[int] = []
    batches = [pa.RecordBatch.from_pydict({"n": list(range(begin, begin + 10))}) for begin in (0, 10)]
    failed_rows = FailedRows()
    letters: list[DeadLetter] = []
    worker = alone(
        pipeline({"rows": Rows("n", attempts=4), "odd": OddOnes(seen)}),
        conf={ROWS_KEY: (iter(batches), failed_rows, letters.append), "topology.error.policy": policy},
        on_error=failed_rows.add_error,
        on_dead_letter=lambda _: False,
    )
    worker.start()
    worker.set_active(active=True)
    assert wait_idle(worker, 20)
    worker.close()
    assert Counter(seen) == {number: 1 if number % 2 else 4 for number in range(20)}
    assert (failed_rows.count, len(failed_rows.examples)) == (10, 5)
    assert {*failed_rows.examples} < {f"n={number}" for number in range(0, 20, 2)}
    assert "of 'odd': ValueError: an even number, at <Tuple" in failed_rows.errors[0]
    (told,) = logged(caplog, "spark.rows_failed")
    wanted = [(4, (number,)) for number in range(0, 20, 2)] if policy == "dead_letter" else []
    assert sorted((letter.tries, letter.tuple.values) for letter in letters) == wanted
    assert (told["attempts"], told["row"]) == (4, failed_rows.examples[0])


class Unprintable:
    """An object without a string form."""

    def __str__(self) -> str:
        raise OSError


def test_a_dead_letter_has_a_form_whatever_is_in_it() -> None:
    """Values without a JSON form are shown as text, and the columns can contain any value."""
    source = TupleSource("rows", 1, Stream("a", "b"))
    for values, wanted in (
        ((1.5, None), '{"a": 1.5, "b": null}'),
        ((b"\xff", "a\ud800\u00e9"), '{"a": "b\'\\\\xff\'", "b": "a\\ud800\u00e9"}'),
        ((Unprintable(), "b"), '{"a": "<Unprintable>", "b": "<str>"}'),
    ):
        error = TaskError("bolt", 7, ValueError("\ud800" * 2000))
        [told] = as_tuples(DeadLetter(Tuple(values, source), error, 3)).tuples
        *facts, reason, _, shown = told
        assert facts == ["bolt", 7, "rows", 1, "default", 3]
        assert shown == wanted
        assert reason.encode().startswith(b"ValueError: \\ud800")


def test_a_row_is_emitted_at_least_once() -> None:
    """Zero attempts are refused when the topology is built."""
    with pytest.raises(TopologyError, match="attempts cannot be 0"):
        Rows("n", attempts=0)


def topology() -> Topology:
    """Return three tasks in three executors."""
    return pipeline({"source": FeederSpout(["number"]), "sink": Sink()}, tasks=2)


def place(number: int, name: str = "t") -> WorkerRef:
    """Return a worker."""
    return WorkerRef(f"unix:///{number}", f"worker-{number}", f"10.0.0.{number}:1", name, number)


def joined(*attempts: int) -> list[Member]:
    """Return the announcements of PySpark tasks that run next to two workers alternately."""
    return [
        from_lists(Member, to_lists(Member(attempt, place(rank % 2))))
        for rank, attempt in enumerate(attempts)
    ]


def test_everybody_has_the_same_plan() -> None:
    """Each task and mailbox is on one worker, with ids that are unique to the generation."""
    plan = Plan(topology(), RUN, joined(12, 10, 11), place(9))
    assignment = plan.assignment()
    held = {each.worker_id: list(each.tasks) for each in assignment.workers}
    base = plan.task_offset
    assert held == {
        "worker-0": [base + 1, plan.control_task(0), base + 3, plan.control_task(2)],
        "worker-1": [base + 2, plan.control_task(1)],
        "worker-9": [SUBMITTER_TASK],
    }
    assert (plan.generation, assignment.version, assignment.topology) == (10, 10, "t")
    assert [address for address, _ in plan.assignment_targets(0)] == ["unix:///0", "10.0.0.9:1"]
    assert [address for address, _ in plan.assignment_targets(1)] == ["unix:///1"]
    first, *others = joined(15, 13, 14)
    later = Plan(topology(), RUN, [replace(first, submitter_version=10), *others], place(9)).assignment()
    assert later.version == 11, "newer than what the submitter's worker has from the generation before"
    ids = {task for each in assignment.workers for task in each.tasks}
    assert ids & {task for each in later.workers for task in each.tasks} == {SUBMITTER_TASK}


@pytest.mark.parametrize("attempt", [0, 2**31, 2**40])
def test_ids_stay_in_their_range(attempt: int) -> None:
    """For any attempt number, ids are below the submitter's id."""
    plan = Plan(topology(), "f" * 32, joined(attempt, attempt + 1, attempt + 2))
    assert all(0 < task < SUBMITTER_TASK for each in plan.assignment().workers for task in each.tasks)


def test_workers_of_several_topologies() -> None:
    """Workers of different topologies cannot run one topology."""
    others = [Member(1, place(0)), Member(2, place(1, "other")), Member(3, place(2))]
    with pytest.raises(ConfigError, match="different topologies, 'other', 't': start them with one"):
        Plan(topology(), RUN, others)


def test_workers_that_would_refuse_each_other() -> None:
    """Workers that accept only this run's token cannot be mixed with others without certificates."""
    own = replace(place(0), is_own=True)
    mixed = [Member(1, own), Member(2, place(1)), Member(3, place(1))]
    with pytest.raises(ConfigError, match=r"'worker-0' was started for this run .* 'worker-1' does not have"):
        Plan(topology(), RUN, mixed)
    with pytest.raises(ConfigError, match="'worker-0' was started for this run"):
        Plan(topology(), RUN, joined(1, 2, 3), own)
    Plan(topology(), RUN, [Member(attempt, own) for attempt in (1, 2, 3)], own)
    Plan(topology(), RUN, joined(1, 2, 3), replace(own, tls=True))


def test_the_token_of_a_run_is_not_shown() -> None:
    """No representation contains the token; its file is private and is removed with the block."""
    submitted = Submission("t", RUN, topology(), {}, 2, Output({}, frozenset()))
    secret = submitted.token.secret
    assert secret not in repr(submitted)
    assert pickle.loads(pickle.dumps(submitted)).token.secret == secret  # noqa: S301 - our own
    assert secret != RunToken().secret
    with submitted.token.as_file() as file:
        assert file.read_text() == f"run {secret}\n"
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not file.parent.exists()


def test_mail_travels() -> None:
    """A control message survives a round trip, and other bytes are an error."""
    sent = report(1, 3)
    assert ControlMessage.from_bytes(sent.to_bytes()).to_bytes() == sent.to_bytes()
    for payload in (b"", b"\xff", b"\x94\x01\x02\x03\x04", sent.to_bytes()[:9]):
        with pytest.raises(MalformedError, match="not a control message"):
            ControlMessage.from_bytes(payload)


def run_of(n_tuples: int) -> EmittedTuples:
    """Return a run with this number of a bolt's tuples."""
    source: TupleSource = topology().source(3, "default")
    return EmittedTuples(source, None, [Tuple([number], source) for number in range(n_tuples)])


def test_output_waits_for_its_reader() -> None:
    """A bolt waits if the mailbox is full, until its rows are taken or discarded."""
    inbox = ControlInbox(max_tuples=2)
    inbox.put_tuples([run_of(2)])
    entered = threading.Event()

    def put() -> None:
        entered.set()
        inbox.put_tuples([run_of(5)])
        inbox.put_tuples([run_of(1)])

    with in_threads(put):
        assert entered.wait(60)
        first: list[EmittedTuples] = []
        while len(first) < 2:
            first += inbox.take_all(60)[1]
        assert [len(run.tuples) for run in first[:2]] == [2, 5]
        inbox.discard()
    assert inbox.take_all(0.0) == ([], [])


def test_no_more_mail() -> None:
    """A waiting reader gets the error of a closed mailbox."""
    inbox = ControlInbox()
    inbox.fail(UnreachableError("gone"))
    with pytest.raises(UnreachableError, match="gone"):
        inbox.take_all(60)


def test_failure_travels_through_a_spark_error() -> None:
    """A failure is recovered from Spark's error text with its traceback; other errors are ignored."""
    failure = Failure("task 3 of 'split': KeyError: 'x: y'", "Traceback:\n  line\nKeyError: 'x: y'\n")
    text = f"[USER_RAISED_EXCEPTION] {encode_failure('PySpark task 2', failure)} SQLSTATE: P0001\n\tat java"
    found = decode_failure(text, "words")
    assert found is not None
    assert str(found) == "PySpark task 2 of topology 'words' has failed: task 3 of 'split': KeyError: 'x: y'"
    assert found.__notes__[0].endswith("Traceback:\n  line\nKeyError: 'x: y'")
    assert decode_failure("Job aborted due to stage failure: ...", "words") is None


class OtherSpark:
    """A Spark session without the private method for the maximum number of concurrent tasks."""

    defaultParallelism = 3  # noqa: N815 - Spark's name

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        """Return this object as the Spark context."""
        return self

    @property
    def _jsc(self) -> Any:
        return self

    def sc(self) -> Any:
        """Raise the error of a missing method."""
        raise RuntimeError("Method maxNumConcurrentTasks([]) does not exist")


def test_slots_of_another_spark() -> None:
    """If Spark does not report its maximum, its number of cores is used."""
    spark: Any = OtherSpark()
    check_slots(spark, 3)
    with pytest.raises(ConfigError, match=r"a page runs 4 PySpark tasks .* has 3 slot\(s\).* local\[4\]"):
        check_slots(spark, 4, "a page")
