"""Signal handling: a handler must not wait for a lock that the main thread holds."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tuplewire_service.config.stop import read_signals


@pytest.mark.timeout(20)
def test_signals_come_while_the_main_thread_waits() -> None:
    """A handler can set an Event at any time, even while the main thread waits for it."""
    seen: list[int] = []
    stop, ended = threading.Event(), threading.Event()

    def take(number: int) -> None:
        seen.append(number)
        stop.set()

    def interrupt() -> None:
        while not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    read_signals(take)
    sender = threading.Thread(target=interrupt, daemon=True)
    try:
        sender.start()
        for _ in range(100_000):
            stop.wait(0)
        assert stop.wait(10)
    finally:
        ended.set()
        sender.join()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(signal.set_wakeup_fd(-1))
    assert set(seen) == {signal.SIGINT}
