"""The event-loop thread tells how long it waits, and what goes wrong on it."""

from __future__ import annotations

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.testing import eventually


def test_waits_are_told_until_nobody_asks() -> None:
    """Each wait comes with its two ends; whoever stops listening while the loop waits does it no harm."""
    loop = messaging_loop()
    waits: list[tuple[float, float]] = []

    def heard(began: float, ended: float) -> None:
        waits.append((began, ended))

    loop.on_wait(heard)
    try:
        eventually(lambda: loop.call(lambda: len(waits)) >= 3, 20, "three waits")
    finally:
        loop.on_wait(None)  # from this thread, while that of the loop waits
    assert loop.call(lambda: "it turns") == "it turns"
    assert all(began <= ended for began, ended in waits)
    assert [began for began, _ in waits] == sorted(began for began, _ in waits)


def test_news_for_a_loop_that_is_closed_is_no_defect() -> None:
    """What gRPC says too late of another program's call is passed over; everything else is told."""
    thread = messaging_loop()
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
