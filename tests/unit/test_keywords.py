"""The keyword arguments of clients, and the tasks of recv: what an editor shows is what is taken."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

import tuplewire
import tuplewire.spark
from tuplewire import aio
from tuplewire.config import SessionKeywords, SessionSettings
from tuplewire.errors import FlushTimeoutError, InvalidTaskError, TuplewireError
from tuplewire.membership import Membership, MembershipKeywords
from tuplewire.settings import settings_of


def test_keywords_are_the_settings_of_a_session() -> None:
    """Each setting can be completed and is checked by type, and there is no other."""
    assert get_type_hints(SessionKeywords).keys() == settings_of(SessionSettings).keys()
    keywords = inspect.signature(Membership).parameters.keys() - {"workers", "tasks"}
    assert get_type_hints(MembershipKeywords).keys() == keywords


@pytest.mark.parametrize("kind", [tuplewire.Client, aio.Client])
@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ("42", r"tasks are numbers, such as \[42\], not '42'"),
        ([], "no task is named"),
        ([-1], "task -1 is outside"),
        (["7"], "'7'"),
        (2.5, "2.5"),
    ],
)
def test_recv_says_what_is_no_task(kind: Any, tasks: Any, why: str) -> None:
    """A wrong task is told where it was written, and not by a worker."""
    with pytest.raises(InvalidTaskError, match=why):
        kind("127.0.0.1:1").recv(tasks)


def test_a_flush_that_takes_too_long_is_a_timeout() -> None:
    """Whoever catches Python's own TimeoutError catches it."""
    error = FlushTimeoutError("3 messages")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, TuplewireError)
    assert str(error) == "3 messages"


def test_completion_finds_what_there_is() -> None:
    """What a notebook completes after `tuplewire.` is the public API."""
    shown = [name for name in dir(tuplewire) if not name.startswith("_")]
    assert shown == sorted(tuplewire.__all__)
    assert {"Client", "TaskMessageBatch", "local"} <= set(shown)
    assert sorted(dir(tuplewire.spark)) == sorted(tuplewire.spark.__all__)
    names = subprocess.run(
        [sys.executable, "-c", "import tuplewire; print(tuplewire.aio.Client, tuplewire.errors.ClosedError)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert names.returncode == 0, names.stderr
