"""Error classes: codes, base classes and pickling."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

import tuplewire
import tuplewire_service
from tuplewire import errors
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.errors import (
    ConfigError,
    MessageError,
    MessageTooLargeError,
    RefusedError,
    RefusedMessagesError,
    TuplewireError,
    refusal_error,
)
from tuplewire.request_reply import _PendingRequests
from tuplewire.team.team import Team
from tuplewire.wire import messaging_pb2
from tuplewire_service.messaging.server_stream import ended_to_wire
from tuplewire_topology import Stream, Tuple
from tuplewire_topology.authoring.component import TaskError
from tuplewire_topology.authoring.tuples import TupleSource
from tuplewire_topology.clusters.worker_process import WorkerProcess
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.statistics import Failure, ProcessFailedError

CODES = sorted(
    name.removeprefix("ERROR_CODE_")
    for name in messaging_pb2.ErrorCode.keys()  # noqa: SIM118 - an enum wrapper, not a dict
)
CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]


def test_every_code_has_a_class() -> None:
    """Each error code on the wire has its own RefusedError with the peer's message; other codes have none."""
    assert sorted([kind.__dict__["code"] for kind in CLASSES if "code" in kind.__dict__]) == CODES
    for code in [*CODES, "SOMETHING_NEW"]:
        error = refusal_error(code, "because \udcff")
        assert isinstance(error, RefusedError)
        assert ended_to_wire(error).detail == r"because \udcff"  # as UTF-8 cannot encode the character
        if code in {"SOMETHING_NEW", "UNSPECIFIED"}:
            assert type(error) is RefusedError
        else:
            assert (error.code, type(error) is RefusedError) == (code, False)


@pytest.mark.parametrize("kind", CLASSES)
def test_tree(kind: type) -> None:
    """Every error in tuplewire.errors is a TuplewireError with a docstring, and in the tree of the module."""
    assert issubclass(kind, TuplewireError)
    assert kind.__name__ in str(errors.__doc__)
    assert kind.__doc__
    if kind in {ConfigError, MessageError}:  # they report mistakes of the caller
        assert issubclass(kind, ValueError)


def _all_errors() -> list[type[TuplewireError]]:
    """Import all modules, and return every error class of the project."""
    for package in (tuplewire, tuplewire_service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and "pb2" not in module.name:
                importlib.import_module(module.name)
    found = [TuplewireError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    return [kind for kind in found if kind.__module__.startswith("tuplewire")]


class Odd:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")

    def __str__(self) -> str:
        return "odd"


def _made(kind: type[TuplewireError]) -> TuplewireError:
    """Return an error with an attribute, a note and a cause, without calling its constructor."""
    error = kind.__new__(kind, "because")
    error.args = ("because",)
    error.owner = "host:1"  # type: ignore[attr-defined]
    error.odd = Odd()  # type: ignore[attr-defined]
    error.add_note("a note")
    error.__cause__ = ZeroDivisionError("by zero")
    return error


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - created here


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_travels(kind: type[TuplewireError]) -> None:
    """Pickle and copy preserve text, attributes, notes and cause; unpicklable values become text."""
    for through in (_pickled, copy.copy):
        again: Any = through(_made(kind))
        assert (type(again), str(again), again.owner) == (kind, "because", "host:1")
        assert again.odd == "Odd: odd"
        assert again.__notes__ == ["a note"]
        assert repr(again.__cause__) == "ZeroDivisionError('by zero')"


@pytest.mark.parametrize(
    "raise_stored",
    [
        SendBuffer._raise_closed,
        lambda it: Receiver._pop_or_raise(it, None),
        _PendingRequests.are_answered,
        lambda it: Team._run(it, "barrier", iter([{}]), [], 1.0),  # type: ignore[arg-type]
        ExecutorGroup.raise_if_failed,
        WorkerProcess.raise_if_failed,
    ],
)
def test_a_stored_error_does_not_grow(raise_stored: Callable[[Any], object]) -> None:
    """The traceback of a stored error, which keeps the frames of callers alive, does not grow."""
    stored, lengths = _made(RefusedError), set[int]()
    names = dict.fromkeys(("failure", "_failure", "error", "_given_up"), stored)
    for _ in range(2):
        with pytest.raises(RefusedError, match="because") as raised:
            raise_stored(MagicMock(**names))
        assert (raised.value.__dict__, raised.value.__cause__) == (stored.__dict__, stored.__cause__)
        lengths.add(len(raised.traceback))
    assert len(lengths) == 1


def test_errors_with_more_than_words_travel() -> None:
    """Errors with other constructor arguments can be pickled as well."""
    source = TupleSource("bolt", 7, Stream("number"))
    again = _pickled(TaskError("bolt", 7, LookupError("none"), Tuple([5], source)))
    assert (again.component, again.task, again.tuple[0]) == ("bolt", 7, 5)
    assert isinstance(again.__cause__, LookupError)
    process = _pickled(ProcessFailedError("w1", Failure("it broke", "line 1")))
    assert (process.process, process.failure.summary) == ("w1", "it broke")
    for error in (
        MessageTooLargeError(1, 20, 10),
        RefusedMessagesError(["one", "two"]),
        refusal_error("X", "because"),
    ):
        error.owner = "host:1"  # type: ignore[union-attr]
        copied = _pickled(error)
        assert (type(copied), str(copied), copied.__dict__) == (type(error), str(error), error.__dict__)
