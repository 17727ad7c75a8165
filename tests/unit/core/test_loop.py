"""The event-loop thread reports its waits and its errors."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Timer

from _pytest.monkeypatch import MonkeyPatch

from tuplewire.connection import loop as loop_module
from tuplewire.connection.loop import EventLoopThread, messaging_thread, run_in_thread
from tuplewire_service.testing import eventually


def test_waits_are_told_until_nobody_asks() -> None:
    """Each wait is reported with its start and end; the callback can be removed while the loop waits."""
    loop = messaging_thread()
    waits: list[tuple[float, float]] = []

    def heard(began: float, ended: float) -> None:
        waits.append((began, ended))

    loop.set_wait_listener(heard)
    try:
        eventually(lambda: loop.call(lambda: len(waits)) >= 3, 20, "three waits")
    finally:
        loop.set_wait_listener(None)  # from this thread, while the loop's thread waits
    assert loop.call(lambda: "it turns") == "it turns"
    assert all(began <= ended for began, ended in waits)
    assert [began for began, _ in waits] == sorted(began for began, _ in waits)


def test_news_for_a_loop_that_is_closed_is_no_defect() -> None:
    """Errors of gRPC about another loop that was closed are ignored; all other errors are reported."""
    thread = messaging_thread()
    told: list[str] = []
    thread.call(lambda: thread.loop.set_exception_handler(lambda _, context: told.append(context["message"])))
    late = "Exception in callback PollerCompletionQueue._handle_events()"
    ours = "Exception in callback Sender._woken()"
    try:
        for message in (late, ours):
            context = {"message": message, "exception": RuntimeError("Event loop is closed")}
            thread.call(lambda context=context: thread.loop.call_exception_handler(context))  # type: ignore[misc]
    finally:
        thread.call(lambda: thread.loop.set_exception_handler(None))
    assert told == [ours]


def test_threads_that_ask_first_together_get_one_loop(monkeypatch: MonkeyPatch) -> None:
    """Each thread creates a loop without a lock; all loops except one are closed, with their sockets."""
    made: list[EventLoopThread] = []
    together = Barrier(4)

    class Made(EventLoopThread):
        def __init__(self) -> None:
            together.wait(20)
            super().__init__()
            made.append(self)

    monkeypatch.setattr(loop_module, "_current", None)
    monkeypatch.setattr(loop_module, "EventLoopThread", Made)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: messaging_thread(), range(4)))
    assert len(set(answers)) == 1
    unused = [each for each in made if each is not answers[0]]
    eventually(lambda: all(each.loop.is_closed() for each in unused), 20, "three closed loops")
    assert not answers[0].loop.is_closed()
    answers[0].stop()
    eventually(answers[0].loop.is_closed, 20, "the last one closed")


def test_a_fork_waits_for_functions_in_their_own_threads() -> None:
    """A child is created after they have returned: it would inherit OpenSSL locks that nothing releases."""
    entered, go, returned = Event(), Event(), Event()

    def handshake() -> None:
        entered.set()
        go.wait(10)
        returned.set()

    messaging_thread().submit(run_in_thread(handshake))
    assert entered.wait(10)
    Timer(0.3, go.set).start()  # longer than the rest of the preparation takes
    child = os.fork()
    if not child:
        os._exit(0 if returned.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
