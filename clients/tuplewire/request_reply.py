"""Request and reply by task: requests that wait for their answers, and the errors if there is none.

Used by programs, through Client.asker() and Client.answer(). Owns, for each Asker, the subscription to its
task and the requests that wait. The receiver passes it the answers on the messaging loop. Thread-safe.
Design: docs/design/sessions.md ("Request and reply").
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from threading import TIMEOUT_MAX, Lock

from tuplewire import errors
from tuplewire.connection.consuming_end import Callbacks
from tuplewire.connection.loop import BLOCKING_CALL, is_on_messaging_loop, messaging_thread
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.submission_queue import InterruptSafeCondition
from tuplewire.connection.task_states import NO_CONSUMER_SECONDS, POLL_SECONDS, TaskStates
from tuplewire.settings.config import check_timeout
from tuplewire.subscription import Closeable
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.headers import DEADLINE, REPLY_TO, parse_reply_task
from tuplewire.values.message import TaskMessage
from tuplewire.values.task_ids import check_tasks

CORRELATION = "tuplewire-correlation"
"""The header with the id of a request, which its answer repeats."""
ERROR_HEADER = "tuplewire-error"
"""The header of an answer that is an error: its text."""
_FIRST_POLL_SECONDS = 1.0
"""The wait for an answer before the first poll: most requests cause none."""


def build_answer(message: TaskMessage, payload: bytes, *extra_headers: tuple[str, bytes]) -> TaskMessage:
    """Return the answer to a request, with more headers. Raises MessageError if it is not a request."""
    if (reply_to := parse_reply_task(getattr(message, "headers", ()))) is None:
        raise errors.MessageError("the message is not a request: check message.is_request before you answer")
    correlation = dict(message.headers).get(CORRELATION)
    return TaskMessage(reply_to, payload, headers=[(CORRELATION, correlation), *extra_headers])


class AnswerMethods:
    """The methods of a client that answer requests."""

    send: Callable[..., None]

    def answer(self, message: TaskMessage, payload: bytes) -> None:
        """Send the answer to a request. Waits and raises errors as `send` does.

        Args:
            message: The request.
            payload: The payload of the answer.

        Raises:
            MessageError: The message is not a request; see TaskMessage.is_request.

        Example:
            >>> for message in inbox.messages(seconds=60):
            ...     client.answer(message, b"an answer")
        """
        self.send([build_answer(message, payload)])

    def answer_error(self, message: TaskMessage, text: str) -> None:
        """Answer a request with an error: the requester gets an AnswerError with a text. See answer().

        Args:
            message: The request.
            text: The text.
        """
        self.send([build_answer(message, b"", (ERROR_HEADER, f"{text}".encode(errors="replace")))])


class _PendingRequests:
    """The requests of one call. Use it with the lock."""

    def __init__(self, receiver: Receiver, lock: Lock, requests: Mapping[bytes, tuple[int, bytes]]) -> None:
        self._receiver = receiver
        self.changed = InterruptSafeCondition(lock)
        self.unanswered = {request_id: task for request_id, (task, _) in requests.items()}
        """The task of each request without an answer, by the id of the request."""
        self.answers: dict[bytes, TaskMessage] = {}
        self.error: errors.TuplewireError | None = None
        self.states = TaskStates()

    def set_error(self, error: errors.TuplewireError) -> None:
        self.error = self.error or error
        self.changed.notify_all()

    def are_answered(self) -> bool:
        """Return True if all answers have arrived. Raise the error of the call or of the subscription."""
        if self.unanswered and (error := self.error or self._receiver.failure):
            raise errors.fresh_copy(error)
        if self.unanswered and self._receiver.is_closed:
            raise errors.ClosedError("the asker is closed")
        return not self.unanswered

    def no_answer_error(self, seconds: float) -> errors.NoAnswerError:
        """Return the error for the first request without an answer."""
        task, *others = self.unanswered.values()
        state = self.states[task]
        total = len(others) + len(self.answers)
        count = f", nor to {len(others)} of {total} other requests," if others else ""
        text = f"no answer from task {task}{count} within {seconds:g} s: {state}"
        return errors.NoAnswerError(text, task, *state[:3])


class Asker(Closeable):
    """Sends requests to tasks, and waits for the answers, which its own task receives. Thread-safe.

    A request is a message that names the task for its answer, its id, and the time at which this program
    stops waiting. It is delivered exactly once, like other messages. If the answering program fails, the next
    one may receive the request again, and answer it again.

    Several threads may wait at the same time. Close it, or use it in `with`; a closed client closes it, too.
    """

    def __init__(self, client: AnswerMethods, start_receiver: Callable[..., Receiver], reply_to: int) -> None:
        """Programs call Client.asker(). start_receiver: the method of the client."""
        super().__init__()
        (self._reply_to,) = check_tasks(reply_to)
        self.dropped_messages = 0
        """The number of dropped messages, such as late or repeated answers, and other messages."""
        self._client = client
        self._lock = Lock()
        self._calls: dict[bytes, _PendingRequests] = {}
        """The calls that wait, by the id of each request without an answer."""
        callbacks = Callbacks(self._on_group, self._on_failure)
        self._receiver = start_receiver([self._reply_to], callbacks, follow=True)

    def ask(self, task: int, payload: bytes, *, timeout: float = 30.0) -> TaskMessage:
        """Send a request and return its answer. See ask_all() for `timeout` and the errors."""
        return self.ask_all([(task, payload)], timeout=timeout)[0]

    def ask_all(self, requests: Iterable[tuple[int, bytes]], *, timeout: float = 30.0) -> list[TaskMessage]:
        """Send several requests together; return the answers in the order of the requests.

        Args:
            requests: The task and the payload of each request.
            timeout: The maximum wait for all answers in seconds. math.inf: no limit, and no deadline.

        Raises:
            NoAnswerError: The timeout has passed without all answers.
            NoConsumerError: A task had no consumer, or no worker, for 5 seconds.
            AnswerError: An answer is an error.
            ClosedError: The asker or its client is closed, or belongs to the parent process.
            SupersededError: Another program has subscribed to the task for the answers.
            PermissionDeniedError: The client lacks the permission to receive from that task.
            UnknownTaskError: The assignment has no such task for the answers.
            UnreachableError: No worker has accepted the subscription within connect_timeout_seconds.
            BufferFullError: The client's buffer was full until the timeout.
            RuntimeError: The call was made on the messaging loop, for example in a callback.
        """
        self._check_process()
        if is_on_messaging_loop():  # it would deliver the answers, and must not wait for them
            raise RuntimeError(BLOCKING_CALL)
        send_timeout = check_timeout(timeout)
        seconds = math.inf if send_timeout is None else send_timeout
        by_id = {secrets.token_hex(8).encode(): pair for pair in requests}
        call = _PendingRequests(self._receiver, self._lock, by_id)
        call.are_answered()
        deadline = time.monotonic() + seconds
        try:
            with self._lock:
                self._calls.update(dict.fromkeys(by_id, call))
            common: list[tuple[str, bytes | None]] = [(REPLY_TO, b"%d" % self._reply_to)]
            if abs(seconds) < TIMEOUT_MAX:
                common.append((DEADLINE, b"%d" % ((time.time() + seconds) * 1000)))
            messages = (
                TaskMessage(*pair, headers=[*common, (CORRELATION, each)]) for each, pair in by_id.items()
            )
            self._client.send(messages, timeout=send_timeout)
            self._wait_for_answers(call, deadline)
        finally:
            with self._lock:
                for each in by_id:
                    self._calls.pop(each, None)
        # From here on, an answer finds no call: it is dropped.
        if not call.are_answered():
            raise call.no_answer_error(seconds)
        return [call.answers[each] for each in by_id]

    def _wait_for_answers(self, call: _PendingRequests, deadline: float) -> None:
        """Wait for the answers; poll the tasks if this takes long."""
        with call.changed:
            call.changed.wait_for(call.are_answered, min(_FIRST_POLL_SECONDS, deadline - time.monotonic()))
            if call.unanswered and time.monotonic() < deadline:
                polling = messaging_thread().submit(self._poll(call))
                try:
                    call.changed.wait_for(call.are_answered, deadline - time.monotonic())
                finally:
                    polling.cancel()

    # --- on the loop -----------------------------------------------------------------------------

    async def _poll(self, call: _PendingRequests) -> None:
        """Poll the tasks without an answer; end the call if one of them has no consumer for too long."""
        while True:
            await call.states.poll(self._receiver, set(call.unanswered.values()))
            with self._lock:
                for task, state in [(each, call.states[each]) for each in {*call.unanswered.values()}]:
                    if time.monotonic() - state.no_consumer_since >= NO_CONSUMER_SECONDS:
                        call.set_error(errors.NoConsumerError(f"task {task}: {state}", task, *state[:3]))
            await asyncio.sleep(POLL_SECONDS)

    def _on_group(self, group: TaskGroup, acknowledge: Callable[[], None]) -> None:
        for message in TaskMessageBatch.from_groups([group]):
            try:
                headers = dict(message.headers)
            except errors.MalformedError:
                headers = {}
            # A request to the task of an asker has an id, too, but is no answer.
            request_id = b"" if REPLY_TO in headers else headers.get(CORRELATION) or b""
            with self._lock:
                if (call := self._calls.pop(request_id, None)) is None:
                    self.dropped_messages += 1
                elif (error := headers.get(ERROR_HEADER)) is not None:
                    text = error.decode(errors="replace")
                    call.set_error(errors.AnswerError(text, call.unanswered[request_id]))
                else:
                    call.answers[request_id] = message
                    del call.unanswered[request_id]
                    if not call.unanswered:
                        call.changed.notify_all()
        acknowledge()

    def _on_failure(self, error: errors.TuplewireError) -> None:
        with self._lock:
            for call in self._calls.values():
                call.set_error(error)

    # --- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the subscription: calls that wait raise ClosedError. A second call does nothing."""
        if not self._is_inherited:
            messaging_thread().run(self._receiver.close())
