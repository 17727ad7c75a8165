"""Keyword arguments of clients, and tasks of recv: editors show exactly the accepted arguments."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any, get_type_hints

import pytest
from helpers.tools import output_of

import tuplewire
import tuplewire.spark
import tuplewire_topology
from tuplewire import aio
from tuplewire.errors import FlushTimeoutError, InvalidTaskError, TuplewireError, WaitTimeoutError
from tuplewire.membership import Membership, MembershipKeywords
from tuplewire.settings import config
from tuplewire.settings.config import SessionKeywords, SessionSettings
from tuplewire.settings.settings import settings_of
from tuplewire.spark.client_handle import ClientHandle


def test_keywords_are_the_settings_of_a_session() -> None:
    """The type hints list exactly the session settings."""
    assert get_type_hints(SessionKeywords).keys() == settings_of(SessionSettings).keys()
    keywords = inspect.signature(Membership).parameters.keys() - {"workers", "tasks"}
    assert get_type_hints(MembershipKeywords).keys() == keywords


@pytest.mark.parametrize(
    "function",
    [tuplewire.Client, aio.Client, ClientHandle, tuplewire.local.client],
    ids=lambda each: each.__name__,
)
def test_python_itself_knows_the_keywords(function: Any) -> None:
    """help() and completion show each setting with its default, and no `**settings`."""
    shown = inspect.signature(function).parameters
    for name, declared in settings_of(SessionSettings).items():
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == declared.default
        assert type(shown[name].default) in {str, int, float}
        assert get_type_hints(SessionKeywords)[name] == eval(shown[name].annotation, vars(config))  # noqa: S307
    assert not [name for name, each in shown.items() if each.kind is inspect.Parameter.VAR_KEYWORD]
    assert "overflow" in pydoc.render_doc(function)


@pytest.mark.parametrize("kind", [tuplewire.Client, aio.Client])
def test_help_describes_every_parameter(kind: Any) -> None:
    """The docstrings of a client describe all parameters of its methods, or name the method that does."""
    methods = {name: each for name, each in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    for name, method in {"__init__": kind.__init__, **methods}.items():
        text = inspect.getdoc(method) or ""
        described = {
            each for names in re.findall(r"(?m)^ +([\w, ]+): \S", text) for each in names.split(", ")
        }
        missing = inspect.signature(method).parameters.keys() - described - {"self"}
        assert not missing or f"see tuplewire.Client.{name}" in text, (name, missing)
    assert "ack_mode: when a message counts as acknowledged" in pydoc.plain(pydoc.render_doc(kind))


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
    """The call itself refuses an invalid task, before it contacts a worker."""
    with pytest.raises(InvalidTaskError, match=why):
        kind("127.0.0.1:1").recv(tasks)


@pytest.mark.parametrize("kind", [FlushTimeoutError, WaitTimeoutError])
def test_a_wait_that_takes_too_long_is_a_timeout(kind: Any) -> None:
    """Timeouts are also TimeoutErrors, so `except TimeoutError` catches them."""
    error = kind("3 messages")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, TuplewireError)
    assert str(error) == "3 messages"


def test_completion_finds_what_there_is() -> None:
    """Completion after `tuplewire.` lists the public API."""
    shown = [name for name in dir(tuplewire) if not name.startswith("_")]
    assert shown == sorted(tuplewire.__all__)
    assert {"Client", "TaskMessageBatch", "WorkerProcesses", "local"} <= set(shown)
    assert all(hasattr(tuplewire, name) for name in shown)
    assert {"DistributedCluster", "LocalCluster", "complete_topology"} < set(tuplewire_topology.__all__)
    assert all(hasattr(tuplewire_topology, name) for name in tuplewire_topology.__all__)
    assert sorted(dir(tuplewire.spark)) == sorted(tuplewire.spark.__all__)
    output_of("import tuplewire; print(tuplewire.aio.Client, tuplewire.errors.ClosedError)")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (tuplewire.TaskMessageBatch, {"source"}),
        (tuplewire.TaskMessageBatch.from_columns, {"sources", "keys", "headers"}),
        (tuplewire.TaskMessageBatch.from_arrow, {"source", "keys", "headers"}),
        (tuplewire.local, {"topology", "drain_seconds"}),
        (tuplewire_topology.complete_topology, {"conf", "timeout"}),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_arguments_without_an_obvious_order_have_names(function: Any, names: set[str]) -> None:
    """Callers must name the arguments that they could confuse."""
    shown = inspect.signature(function).parameters.values()
    assert {each.name for each in shown if each.kind is inspect.Parameter.KEYWORD_ONLY} == names
