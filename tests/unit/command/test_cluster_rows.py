"""Rates, states and blocking tasks of a cluster, from two samples of each worker."""

from __future__ import annotations

import pytest

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.cluster_rows import TABLES, cluster_rows
from tuplewire_service.command.viewer.columns import select_rows
from tuplewire_service.command.viewer.rates import WorkerSample


def worker(
    name: str = "a",
    *,
    age: float = 10.0,
    incarnation: int = 1,
    accepted: int = 0,
    tasks: tuple[pb.TaskStatus, ...] = (),
    blocking: tuple[pb.Blocking, ...] = (),
    sessions: tuple[pb.SessionStatus, ...] = (),
    consumers: tuple[pb.ConsumerStatus, ...] = (),
    dropped: int = 0,
    busy: float = 1.0,
) -> pb.GetStatusResponse:
    """Return the status of a worker that has been busy for a while, and blocked for the rest of its age."""
    return pb.GetStatusResponse(
        worker_id=name,
        incarnation=incarnation,
        state=pb.WORKER_STATE_READY,
        ledger=pb.Ledger(accepted=accepted, acknowledged=accepted, dropped={"closed": dropped}),
        tasks=tasks,
        state_seconds={"busy": busy, "idle": 0.0, "backpressured_credit": age - busy},
        blocking=blocking,
        recent=pb.RecentCounts(interval_seconds=5.0, state_seconds={"busy": 1.0, "idle": 4.0}),
        sessions=sessions,
        consumers=consumers,
    )


def task(number: int, received: int, acknowledged: int, begin: int = 0) -> pb.TaskStatus:
    """Return a task with these numbers of messages since it was assigned to the worker."""
    return pb.TaskStatus(
        task=number,
        queued_messages=received - acknowledged,
        received_messages=received,
        acknowledged_messages=acknowledged,
        base_sequence=begin,
        subscribed=True,
    )


def look(now: pb.GetStatusResponse, before: pb.GetStatusResponse | None = None) -> WorkerSample:
    """Return a sample."""
    return WorkerSample(now.worker_id, "host:1", now, before)


def test_rates_are_over_the_workers_own_time() -> None:
    """Rates are growth between two samples by growth of the worker's age, unless the worker restarted."""
    before = worker(age=10, accepted=100, tasks=(task(1, 50, 40),), busy=1)
    rows = cluster_rows([look(worker(age=12, accepted=300, tasks=(task(1, 150, 50),), busy=1.5), before)])
    assert (rows.workers[0].accepted_rate, rows.tasks[0].received_rate) == (100, 50)
    assert (rows.tasks[0].acknowledged_rate, rows.tasks[0].queued_messages) == (5, 100)
    assert (rows.workers[0].busy, rows.workers[0].backpressured) == (0.25, 0.75)
    assert rows.workers[0].backpressure_cause == "credit"
    rows = cluster_rows([look(worker(age=1, accepted=5, incarnation=2), before)])
    assert rows.workers[0].accepted_rate is None


@pytest.mark.parametrize("before", [(task(1, 1000, 900),), ()])
def test_a_task_that_came_meanwhile_counts_from_nothing(before: tuple[pb.TaskStatus, ...]) -> None:
    """A task that was reassigned between samples counts from zero."""
    rows = cluster_rows([look(worker(age=11, tasks=(task(1, 20, 10, begin=5000),)), worker(tasks=before))])
    assert (rows.tasks[0].received_rate, rows.tasks[0].acknowledged_rate) == (20, 10)


def test_a_sender_that_is_listed_anew_has_no_rate() -> None:
    """A sender without a previous sample has a rate only if it connected since that sample."""
    old = pb.SessionStatus(sender_id="old", state_age_seconds=100, sent_messages=10**6)
    new = pb.SessionStatus(sender_id="new", state_age_seconds=1, sent_messages=50)
    known = pb.SessionStatus(sender_id="known", state_age_seconds=100, sent_messages=50)
    after = pb.SessionStatus(sender_id="known", state_age_seconds=102, sent_messages=90)
    before, now = worker(sessions=(known,)), worker(age=12, sessions=(old, new, after))
    rates = {each.sender: each.rate for each in cluster_rows([look(now, before)]).senders}
    assert rates == {"old": None, "new": 25, "known": 20}


def test_the_culprit_is_named_with_those_it_holds_up() -> None:
    """The blocking task of the last seconds is shown with the workers that it blocks."""
    at_a = pb.Blocking(task="7", place="b", seconds=90, recent_seconds=4)
    at_b = pb.Blocking(task="7", place="local", seconds=90, recent_seconds=5)
    history = pb.Blocking(task="8", place="b", seconds=900)
    slow = pb.ConsumerStatus(consumer_id="slow", tasks=[7], outstanding_messages=500)
    rows = cluster_rows(
        [
            look(worker("a", blocking=(at_a, history))),
            look(worker("b", blocking=(at_b,), tasks=(task(7, 9, 0), task(8, 9, 9)), consumers=(slow,))),
        ]
    )
    assert rows.problems == [
        "task 7 at b blocks senders at a, b, for 100% of the last 5 s: slow has 500 unacknowledged"
    ]
    blocking = {each.task: (each.blocking, list(each.blocked_workers)) for each in rows.tasks}
    assert blocking == {7: (1.0, ["a", "b"]), 8: (0.0, [])}
    now = worker("a", blocking=(at_a,))
    begin = "task 7 at b blocks senders at a, for 80% of the last 5 s: "
    assert cluster_rows([look(now)]).problems == [f"{begin}see b for why"]
    now.peers.add(worker_id="b")
    assert cluster_rows([look(now)]).problems == [f"{begin}not connected"]
    now.peers[0].connected = True
    assert cluster_rows([look(now)]).problems == [f"{begin}see b for why"]


def test_a_silent_worker_explains_all_its_tasks() -> None:
    """One sentence names the worker that does not answer, since when, and the senders that it blocks."""
    blocking = [pb.Blocking(task=str(number), place="b", seconds=9, recent_seconds=4) for number in range(5)]
    silent = WorkerSample("b", "host:2", problem="refused", task_count=250, silent_seconds=12.4)
    rows = cluster_rows([look(worker("a", blocking=tuple(blocking))), silent])
    assert rows.problems == ["b has not answered for 12 s, and blocks senders at a: refused"]
    assert (rows.workers[1].task_count, rows.workers[1].silent_seconds) == (250, 12.4)
    assert (rows.workers[1].pending, rows.workers[1].cells().count("-")) == (None, 11)


def test_full_queues_are_reported() -> None:
    """A queue that is nearly full has a sentence even without a blocked sender; at most five are named."""
    full = [
        pb.TaskStatus(task=n, queued_messages=9000 + n, load=0.9 + n / 100, oldest_seconds=35)
        for n in range(7)
    ]
    slow = pb.ConsumerStatus(consumer_id="slow", tasks=[6], outstanding_messages=500)
    first, *others = cluster_rows([look(worker(tasks=(task(9, 1, 0), *full), consumers=(slow,)))]).problems
    assert first == (
        "the queue of task 6 at a is 96% full: 9,006 messages wait, the oldest for 35.0 s; "
        "slow has 500 unacknowledged"
    )
    assert others[0].endswith("9,005 messages wait, the oldest for 35.0 s; it has no consumer")
    assert others[4:] == ["and 2 more queues are nearly full"]
    held = pb.Blocking(task="6", place="local", seconds=90, recent_seconds=5)
    (one,) = cluster_rows([look(worker(tasks=(full[6],), blocking=(held,)))]).problems
    assert one.startswith("task 6 at a blocks senders")


def test_losses_have_their_reason_and_rate() -> None:
    """Dropped and refused messages are listed with reason and rate; zero counts are omitted."""
    now, before = worker(age=12, dropped=30), worker(dropped=10)
    now.refused_messages.update({"UNKNOWN_TASK": 3, "MALFORMED": 0})
    losses = cluster_rows([look(now, before)]).losses
    assert [(each.kind, each.reason, each.count, each.rate) for each in losses] == [
        ("messages dropped", "closed", 30, 10),
        ("messages refused", "UNKNOWN_TASK", 3, 1.5),
    ]


def test_tables_are_sorted_and_filtered() -> None:
    """Rows are sorted by number, largest first, then by name; unknown values come last."""
    known = tuple(pb.SessionStatus(sender_id=each, state_age_seconds=100, sent_messages=10) for each in "xyz")
    after = [pb.SessionStatus(sender_id=each, sent_messages=10 + n) for n, each in enumerate("xyz")]
    unknown = pb.SessionStatus(sender_id="w", state_age_seconds=100)
    rows = cluster_rows([look(worker(age=12, sessions=(*after, unknown)), worker(sessions=known))])

    def names(wanted: str = "") -> str:
        return "".join(each.sender for each in select_rows(rows.senders, wanted))

    assert names() == "zyxw"
    assert names("Y") == "y"
    assert [each.worker for each in select_rows(rows.workers)] == sorted(each.worker for each in rows.workers)


def test_every_table_has_columns_and_an_order() -> None:
    """Every table can be sorted, and its cells are strings."""
    now = worker(
        tasks=(task(1, 2, 1),),
        sessions=(pb.SessionStatus(),),
        consumers=(pb.ConsumerStatus(tasks=range(9)),),
        dropped=1,
    )
    now.peers.add(worker_id="b")
    now.components.add(component="count").executors.add(first_task=1, task_count=1)
    rows = cluster_rows([look(now)])
    for each in TABLES:
        found = select_rows(getattr(rows, each))
        assert found, each
        assert len(found[0].columns()) > 4, each
        assert all(isinstance(cell, str) for cell in found[0].cells())
