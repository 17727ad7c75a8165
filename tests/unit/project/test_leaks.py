"""The leak check detects threads, child processes and asyncio tasks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from helpers import eventually, leaks


def _finished_child() -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: leaks.children()[child.pid] == "defunct")
    return child


def test_leaks_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running thread, a child that runs or was not waited for, and a cancelled task are reported."""
    monkeypatch.setattr(leaks, "_GRACE_SECONDS", 0.05)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    with pytest.raises(AssertionError, match="thread forgotten"), leaks.no_leaks():
        thread.start()
    stop.set()
    thread.join()
    with pytest.raises(AssertionError, match=r"child process .* sys\.stdin\.read"), leaks.no_leaks():
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    child.communicate()
    with pytest.raises(AssertionError, match="defunct"), leaks.no_leaks():
        dead = _finished_child()
    dead.wait()

    async def main() -> None:
        main.task = asyncio.create_task(asyncio.sleep(60), name="forgotten")  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match=r"forgotten.*cancelled by asyncio\.run"), leaks.no_leaks():
        asyncio.run(main())
    leaks._left_by_runners.clear()
