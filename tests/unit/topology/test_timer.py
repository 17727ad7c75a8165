"""Periodic actions: the schedule, and its two timers."""

from __future__ import annotations

import threading

from tuplewire_service.testing import eventually
from tuplewire_topology.running.timer import SimulatedTimer, SystemTimer


def test_simulated_time_calls_in_order() -> None:
    """Advancing the time calls all due actions in order, and no others, such as cancelled ones."""
    timer = SimulatedTimer()
    called: list[str] = []
    cancel = timer.every(2, lambda: called.append("two"))
    timer.every(3, lambda: called.append("three"))
    timer.advance(1.5)
    assert called == []
    timer.advance(4.5)
    assert called == ["two", "three", "two", "two", "three"]
    cancel()
    cancel()
    timer.advance(6)
    assert called[5:] == ["three", "three"]


def test_system_timer_recurs_and_ends() -> None:
    """Actions are called periodically, in one thread, until the timer is closed."""
    errors: list[BaseException] = []
    timer = SystemTimer(errors.append)
    threads: list[threading.Thread] = []
    timer.every(0.001, lambda: threads.append(threading.current_thread()))
    eventually(lambda: len(threads) > 3)
    timer.close()
    timer.close()
    assert len(set(threads)) == 1
    assert not threads[0].is_alive()
    assert not errors
