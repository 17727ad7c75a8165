"""The error tree."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from helpers.spawned import fails

import tuplewire
import tuplewire_service
from tuplewire import errors
from tuplewire.errors import (
    ConfigError,
    MessageError,
    MessageTooLargeError,
    RefusedError,
    RefusedMessagesError,
    TuplewireError,
    UnknownTaskError,
    refused,
)
from tuplewire.wire import messaging_pb2
from tuplewire_topology import Stream, Tuple
from tuplewire_topology.authoring.component import TaskError
from tuplewire_topology.authoring.tuples import TupleSource
from tuplewire_topology.coordination.termination import ProcessFailedError
from tuplewire_topology.running.idle import Failure

CODES = sorted(
    name.removeprefix("ERROR_CODE_")
    for name in messaging_pb2.ErrorCode.keys()  # noqa: SIM118 - an enum wrapper, not a dict
)
CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("code", [code for code in CODES if code != "UNSPECIFIED"])
def test_every_code_has_a_class(code: str) -> None:
    """Every reason that the wire can name is an error of its own, with the peer's words."""
    error = refused(code, "because")
    assert type(error) is not RefusedError
    assert (error.code, str(error)) == (code, "because")


def test_unknown_code() -> None:
    """A reason that a newer peer made up is still a refusal."""
    error = refused("SOMETHING_NEW", "because")
    assert (type(error), str(error)) == (RefusedError, "because")


def test_one_class_per_code() -> None:
    """No two errors share a code."""
    codes = [kind.__dict__["code"] for kind in CLASSES if "code" in kind.__dict__]
    assert sorted(codes) == CODES


@pytest.mark.parametrize("kind", CLASSES)
def test_tree(kind: type) -> None:
    """Everything raised on purpose is a TuplewireError, and says in its docstring what happened."""
    assert issubclass(kind, TuplewireError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", [ConfigError, MessageError])
def test_value_errors(kind: type) -> None:
    """What the caller got wrong is also a ValueError."""
    assert issubclass(kind, ValueError)


def test_too_large() -> None:
    """The error holds the numbers, and says what to do."""
    error = MessageTooLargeError(3, 200, 100)
    assert (error.task, error.size_bytes, error.limit_bytes) == (3, 200, 100)
    assert "raise max_message_bytes" in str(error)


def test_refused_messages() -> None:
    """The text shows the first five refusals; the rest are in `refusals`."""
    error = RefusedMessagesError([f"reason {n}" for n in range(7)])
    assert str(error).endswith("reason 4; ...")
    assert len(error.refusals) == 7


def test_catching() -> None:
    """A refusal of one kind is caught by its name, or as any refusal."""
    with pytest.raises(UnknownTaskError):
        raise refused("UNKNOWN_TASK", "no task 9")
    with pytest.raises(RefusedError):
        raise refused("UNKNOWN_TASK", "no task 9")


@pytest.mark.parametrize(
    "error",
    [MessageTooLargeError(1, 20, 10), RefusedMessagesError(["a", "b"]), refused("UNKNOWN_TASK", "because")],
    ids=lambda error: type(error).__name__,
)
def test_errors_reach_another_process(error: TuplewireError) -> None:
    """Spark's tasks and process pools pickle them."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def _all_errors() -> list[type[TuplewireError]]:
    """Import everything, and return every error class of the product."""
    for package in (tuplewire, tuplewire_service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and "pb2" not in module.name:
                importlib.import_module(module.name)
    found = [TuplewireError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    return [kind for kind in found if kind.__module__.startswith("tuplewire")]


class Odd:
    """What does not pickle."""

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")

    def __str__(self) -> str:
        return "odd"


def _made(kind: type[TuplewireError]) -> TuplewireError:
    """Return an error, however it is constructed, with an attribute, a note and a cause."""
    error = kind.__new__(kind, "because")
    error.args = ("because",)
    error.owner = "host:1"  # type: ignore[attr-defined]
    error.odd = Odd()  # type: ignore[attr-defined]
    error.add_note("a note")
    error.__cause__ = ZeroDivisionError("by zero")
    return error


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_travels(kind: type[TuplewireError]) -> None:
    """Through pickle and copy, with its words, attributes, notes and cause; what does not pickle is text."""
    for through in (_pickled, copy.copy):
        again: Any = through(_made(kind))
        assert (type(again), str(again), again.owner) == (kind, "because", "host:1")
        assert again.odd == "Odd: odd"
        assert again.__notes__ == ["a note"]
        assert repr(again.__cause__) == "ZeroDivisionError('by zero')"


def test_errors_with_more_than_words_travel() -> None:
    """Those whose constructors take something else."""
    source = TupleSource("bolt", 7, Stream("number"))
    failed = TaskError("bolt", 7, LookupError("none"), Tuple([5], source))
    again = _pickled(failed)
    assert (again.component, again.task, again.tuple[0]) == ("bolt", 7, 5)
    assert isinstance(again.__cause__, LookupError)
    process = _pickled(ProcessFailedError("w1", Failure("it broke", "line 1")))
    assert (process.process, process.failure.summary) == ("w1", "it broke")
    refusals = RefusedMessagesError(["one", "two"])
    refusals.owner = "host:1"
    assert _pickled(refusals).__dict__ == refusals.__dict__


def test_an_error_comes_out_of_a_pool() -> None:
    """A pool of processes that cannot read an error breaks, or waits for ever."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool, pytest.raises(TaskError, match="task 7 of 'bolt'"):
        pool.submit(fails).result(60)
