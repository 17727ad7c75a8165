"""The driver's part of a sink: it has the attempts published that Spark has chosen, once for each task."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError, UnreachableError
from tuplewire.events import event_logger
from tuplewire.session.departure import TaskContent
from tuplewire.spark.stages import AWAY, NEEDS_A_SLOT, Patience, SinkWorkers
from tuplewire.spark.task_workers import At
from tuplewire.wire.control_pb2 import PublishResponse, StagedAttempt, TakeOverResponse
from tuplewire.wire.translate import contents_from_wire

logger = event_logger(__name__)

_SHOWN_TASKS = 10
_WAIT_SECONDS = 5.0
"""So long a commit waits for room. Spark cannot interrupt a commit: query.stop() and a cancelled job wait for
its end. The workers keep what still waits then, and go on. See docs/how-to/spark.md."""
_FORMER_SECONDS = 2.0
"""So long a worker has to answer that no assignment has any more."""


class Publisher(SinkWorkers):
    """Publishes the chosen attempts of an epoch, by their names: in the driver."""

    def __init__(self, address: str, topology: str, timeout: float) -> None:
        """Begin. timeout: seconds for which a worker may be out of reach."""
        super().__init__(address, topology, timeout)

    def check(
        self, sink: str, epoch: int, chosen: Mapping[At, Sequence[StagedAttempt]]
    ) -> dict[At, Sequence[int]]:
        """See that everything is there that is to be published; return which tasks are where.

        Raises StageGoneError, or what keeps a worker out of reach once the timeout has passed.
        """
        return {at: self._ask(at, sink, epoch, attempts, check=True).tasks for at, attempts in chosen.items()}

    def publish(
        self, sink: str, epoch: int, chosen: Mapping[At, Sequence[StagedAttempt]], run: str = ""
    ) -> int:
        """Have an epoch published; return how many messages were not published before.

        run: names the run of the query; empty: nobody else publishes the epoch, ever. Waits some seconds for
        room in the tasks' queues. The workers hold what finds none, and put it there as consumers make room.
        Each task gets an epoch once, whoever publishes it again, and wherever the task is by then, while the
        workers live or end in good order.

        Raises StageGoneError if a worker has lost what was staged, and what keeps a worker out of reach once
        the timeout has passed. Then other workers may have their part.
        """
        left: dict[At, PublishResponse] = {}
        unknown: list[At] = []
        for at, attempts in chosen.items():
            answer = self._ask(at, sink, epoch, attempts, run)
            if answer.unknown_run:
                unknown.append(at)
            else:
                left[at] = answer
        if unknown:
            # A worker that knows this run has had another epoch of it: no earlier run has this one.
            earlier: dict[int, TaskContent] = {} if left else self._take_over(sink, epoch, chosen, run)
            for at in unknown if earlier else ():  # before anything is published anywhere
                self._ask(at, sink, epoch, chosen[at], run, check=True, published_tasks=earlier)
            for at in unknown:
                left[at] = self._ask(at, sink, epoch, chosen[at], run, published_tasks=earlier)
        published = sum(each.chosen for each in left.values())
        deadline = time.monotonic() + _WAIT_SECONDS
        while left := {at: each for at, each in left.items() if each.waiting}:
            if time.monotonic() > deadline:
                self._tell(sink, epoch, left.values())
                break
            left = {at: self._ask(at, sink, epoch) for at in left}
        return published

    def _tell(self, sink: str, epoch: int, left: Collection[PublishResponse]) -> None:
        tasks = sorted(task for each in left for task in each.waiting_tasks)[:_SHOWN_TASKS]
        about = {"sink": sink, "epoch": epoch, "waiting": sum(each.waiting for each in left), "tasks": tasks}
        reason = f"no room in the queues of these tasks; the workers go on when there is. {NEEDS_A_SLOT}"
        logger.warning("sink.waits", extra={**about, "reason": reason})

    def _ask(
        self,
        at: At,
        sink: str,
        epoch: int,
        attempts: Sequence[StagedAttempt] = (),
        run: str = "",
        *,
        check: bool = False,
        published_tasks: Mapping[int, TaskContent] | None = None,
    ) -> PublishResponse:
        """Publish at a worker. published_tasks: what tasks got by earlier runs; None: it is not known."""
        address, worker_id = at
        patience = Patience(self._seconds)
        while True:
            try:
                return self._control(address).publish(
                    self._topology,
                    sink,
                    epoch,
                    attempts,
                    check=check,
                    worker_id=worker_id,
                    run=run,
                    taken_over=published_tasks is not None,
                    published_tasks=published_tasks,
                )
            except AWAY as error:
                self._bear(patience, error, address)

    def _take_over(
        self, sink: str, epoch: int, chosen: Mapping[At, Sequence[StagedAttempt]], run: str
    ) -> dict[int, TaskContent]:
        """Make this run known to all workers; return what tasks got that have the epoch by an earlier one.

        An earlier driver may have died while it published, and a task may have moved since. Its worker of
        that time knows, or those to which that one has said goodbye.
        """
        asked: dict[At, TakeOverResponse] = {}
        patience = Patience(self._seconds)
        while True:
            address = self._address
            try:
                self._assigned(())
                for at in {*self._present.items(), *chosen} - asked.keys():
                    address = at[0]
                    asked[at] = self._take_over_at(self._control(address), at, sink, epoch, chosen, run)
                break
            except AWAY as error:
                self._bear(patience, _unasked(epoch, error), address)
        former = {
            (each.address, each.worker_id) for answer in asked.values() for each in answer.former_workers
        }
        answers = list(asked.values())
        silent = False
        for at in former - asked.keys():
            try:
                with ControlClient(at[0], _FORMER_SECONDS) as control:
                    answers.append(self._take_over_at(control, at, sink, epoch, chosen, run))
            except AWAY:
                silent = True
        if silent:  # it has ended by now, and may have said goodbye to the others after these were asked
            for at in asked:
                with suppress(UnreachableError):
                    answers.append(self._take_over_at(self._control(at[0]), at, sink, epoch, chosen, run))
        return {
            task: content
            for answer in answers
            for task, content in contents_from_wire(answer.published_tasks, answer.published_contents).items()
        }

    def _take_over_at(
        self,
        control: ControlClient,
        at: At,
        sink: str,
        epoch: int,
        chosen: Mapping[At, Sequence[StagedAttempt]],
        run: str,
    ) -> TakeOverResponse:
        return control.take_over(self._topology, sink, epoch, run, chosen.get(at, ()), worker_id=at[1])


def _unasked(epoch: int, error: TuplewireError) -> UnreachableError:
    return UnreachableError(
        f"a new run of the query has to ask every worker which tasks have epoch {epoch} already, and one is "
        f"away: {error}. Bring it back, or take it out of the assignment, and start the query again"
    )
