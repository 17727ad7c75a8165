"""The driver's part of a sink: it publishes the attempts that Spark has chosen, once for each task.

Used by the writers when Spark commits. Owns the clients of the workers with staged attempts of one epoch.
Not thread-safe. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.task_owners import At
from tuplewire.errors import UnknownRunError, UnreachableError
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.stages import NEEDS_A_SLOT, SinkWorkers
from tuplewire.spark.task_workers import RETRYABLE_ERRORS, RetryDeadline
from tuplewire.text.events import event_logger
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.translate import TaskContent, contents_from_wire, contents_to_wire

logger = event_logger(__name__)

_SHOWN_TASKS = 10
_WAIT_SECONDS = 5.0
"""The time that a commit waits for free space. Spark cannot interrupt a commit: query.stop() and a cancelled
job wait for its end. Afterwards, the workers continue with the waiting messages. See docs/how-to/spark.md."""
_FORMER_SECONDS = 2.0
"""The timeout of a call to a worker that is no longer in an assignment."""


class Publisher(SinkWorkers):
    """Publishes the chosen attempts of an epoch by name, in the driver.

    run: the name of the query's run; empty: no other run ever publishes the epoch.
    """

    def __init__(
        self,
        options: SinkOptions,
        sink: str,
        epoch: int,
        chosen: Mapping[At, Sequence[pb.StagedAttempt]],
        run: str = "",
    ) -> None:
        super().__init__(options, sink, epoch)
        self._chosen, self._run = chosen, run

    def check(self) -> dict[At, Sequence[int]]:
        """Check that all chosen attempts are staged; return the tasks at each worker.

        Raises StagedDataLostError, or the reason why a worker is unreachable after the timeout.
        """
        return {at: self._check(at, {}) for at in self._chosen}

    def _check(self, at: At, earlier: Mapping[int, TaskContent]) -> Sequence[int]:
        request = pb.CheckRequest(**self._about(at), **self._attempts(at, earlier))
        return self._with_retries(partial(self[at[0]].check, request)).tasks

    def publish(self) -> int:
        """Publish the epoch; return the number of messages that were not published before.

        Wait some seconds for free space in the tasks' queues. The workers store the remaining messages, and
        queue them when consumers free space. Each task gets an epoch once, even if another run publishes it
        again or the task has moved, as long as the workers run or shut down cleanly.

        Raises StagedDataLostError if a worker has lost staged messages, and the reason why a worker is
        unreachable after the timeout. Other workers may have published their part by then.
        """
        published: dict[At, pb.PublishResponse] = {}
        unknown: list[At] = []
        for at in self._chosen:
            try:
                published[at] = self._publish(at, {})
            except UnknownRunError:
                unknown.append(at)
        earlier: dict[int, TaskContent] = {}
        if unknown and published:
            # A worker that knows this run has had another epoch of it. So no earlier run has this epoch.
            for at in unknown:
                self._with_retries(partial(self._begin_at, self[at[0]], at))
        elif unknown:
            earlier = self._begin()
        for at in unknown if earlier else ():  # before any worker publishes its part
            self._check(at, earlier)
        for at in unknown:
            published[at] = self._publish(at, earlier)
        self._wait([at for at, answer in published.items() if answer.waiting])
        return sum(each.chosen for each in published.values())

    def _wait(self, waiting: Sequence[At]) -> None:
        """Wait a few seconds for free space; log the tasks without any."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while waiting:
            left: dict[At, pb.ProgressResponse] = {}
            for at in waiting:
                request = pb.ProgressRequest(**self._about(at))
                left[at] = self._with_retries(partial(self[at[0]].progress, request))
            waiting = [at for at, answer in left.items() if answer.waiting]
            if waiting and time.monotonic() > deadline:
                tasks = sorted(task for each in left.values() for task in each.waiting_tasks)[:_SHOWN_TASKS]
                messages = sum(each.waiting for each in left.values())
                about = {"sink": self._sink, "epoch": self._epoch, "waiting": messages, "tasks": tasks}
                reason = (
                    f"no room in the queues of these tasks; the workers go on when there is. {NEEDS_A_SLOT}"
                )
                logger.warning("sink.waiting", extra={**about, "reason": reason})
                return

    def _attempts(self, at: At, earlier: Mapping[int, TaskContent]) -> dict[str, Any]:
        """Return the attempts at a worker. earlier: the content that tasks got from earlier runs."""
        return {
            "attempts": self._chosen[at],
            "published_tasks": earlier,
            "published_contents": contents_to_wire(earlier),
        }

    def _publish(self, at: At, earlier: Mapping[int, TaskContent]) -> pb.PublishResponse:
        request = pb.PublishRequest(**self._about(at), run=self._run, **self._attempts(at, earlier))
        return self._with_retries(partial(self[at[0]].publish, request))

    def _begin(self) -> dict[int, TaskContent]:
        """Register this run at all workers; return the content of tasks that got the epoch by an earlier run.

        An earlier driver may have failed while it published, and a task may have moved since. The task's
        worker of that time knows it, or the workers that this worker notified when it shut down.
        """
        asked: dict[At, pb.BeginResponse] = {}
        retry = RetryDeadline(self._timeout)
        while True:
            try:
                self._look_up()
                for at in {*self.owners.present.items(), *self._chosen} - asked.keys():
                    asked[at] = self._begin_at(self[at[0]], at)
                break
            except RETRYABLE_ERRORS as error:
                silence = UnreachableError(
                    f"a new run of the query has to ask every worker which tasks have epoch {self._epoch} "
                    f"already, and one is away: {error}. Bring it back, or take it out of the assignment, "
                    "and start the query again"
                )
                self._wait_or_raise(retry, silence)
        answers = list(asked.values())
        former = {(each.address, each.worker_id) for answer in answers for each in answer.previous_workers}
        silent = False
        # A worker that is no longer assigned may still be draining, and knows the epochs of its tasks.
        for at in former - asked.keys():
            try:
                with self.client(at[0], _FORMER_SECONDS) as control:
                    answers.append(self._begin_at(control, at))
            except RETRYABLE_ERRORS:
                silent = True
        if silent:  # it may have shut down and notified the others only after they were polled
            for at in asked:
                with suppress(UnreachableError):
                    answers.append(self._begin_at(self[at[0]], at))
        return {
            task: content
            for answer in answers
            for task, content in contents_from_wire(answer.published_tasks, answer.published_contents).items()
        }

    def _begin_at(self, control: ControlClient, at: At) -> pb.BeginResponse:
        attempts = self._chosen.get(at, ())
        return control.begin(pb.BeginRequest(**self._about(at), run=self._run, attempts=attempts))
