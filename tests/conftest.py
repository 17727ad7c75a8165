"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from helpers import leaks
from hypothesis import settings

leaks.install()

# A shell starts what it puts into the background with Ctrl-C ignored, and programs under test inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a shared machine.
settings.register_profile("tuplewire", deadline=None)
settings.load_profile("tuplewire")


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaks a thread, a child process or an asyncio task.

    What a fixture of a wider scope holds was there before, and is not the test's.
    """
    with leaks.no_leaks():
        yield
