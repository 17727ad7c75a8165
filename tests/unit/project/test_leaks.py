"""The leak check detects threads, child processes and asyncio tasks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from helpers import eventually, leaks


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(leaks, "_GRACE_SECONDS", 0.05)
    yield
    leaks._left_by_runners.clear()


def _finished_child() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: leaks.children()[child.pid] == "defunct")
    return child


@pytest.mark.usefixtures("_impatient")
class TestLeaks:
    def test_thread(self) -> None:
        """A running thread is reported."""
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait, name="forgotten")
        with pytest.raises(AssertionError, match="thread forgotten"), leaks.no_leaks():
            thread.start()
        stop.set()
        thread.join()

    def test_process(self) -> None:
        """A running child process is reported, and a child that was not waited for."""
        with pytest.raises(AssertionError, match=r"child process .* sys\.stdin\.read"), leaks.no_leaks():
            child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
        with pytest.raises(AssertionError, match="defunct"), leaks.no_leaks():
            dead = _finished_child()
        child.communicate()
        dead.wait()

    def test_task(self) -> None:
        """An asyncio task that asyncio.run had to cancel is reported."""

        async def main() -> None:
            main.task = asyncio.create_task(asyncio.sleep(60), name="forgotten")  # type: ignore[attr-defined]

        with pytest.raises(AssertionError, match=r"forgotten.*cancelled by asyncio\.run"), leaks.no_leaks():
            asyncio.run(main())
