"""The error tree."""

from __future__ import annotations

import inspect
import pickle

import pytest

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

CODES = sorted(
    name.removeprefix("ERROR_CODE_")
    for name in messaging_pb2.ErrorCode.keys()  # noqa: SIM118 - an enum wrapper, not a dict
)
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


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
