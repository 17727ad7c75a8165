"""Log events: the text of a standard formatter, and the fields for a log collector."""

from __future__ import annotations

import logging

import pytest
from helpers.logged import logged

from tuplewire.text.escaping import escape_unprintable, escape_value
from tuplewire.text.events import event_logger

logger = event_logger("tuplewire.test_events")


def test_facts_are_in_the_text_and_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """Fields are in the text and in the record, so a collector does not need to parse the text."""
    with caplog.at_level(logging.INFO):
        logger.info("thing.happened", extra={"peer": "a:1", "messages": 3, "reason": "50 % of it"})
    (record,) = caplog.records
    assert record.message == 'thing.happened peer=a:1 messages=3 reason="50 % of it"'
    assert (record.name, record.funcName) == (
        "tuplewire.test_events",
        "test_facts_are_in_the_text_and_in_the_record",
    )
    (facts,) = logged(caplog, "thing.happened")
    assert (facts["peer"], facts["messages"]) == ("a:1", 3)


def test_what_is_not_logged_is_not_put_into_words(caplog: pytest.LogCaptureFixture) -> None:
    """A disabled log event is not formatted."""

    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    with caplog.at_level(logging.WARNING):
        logger.info("thing.happened", extra={"what": Loud()})
    assert not caplog.records


def test_a_trace_comes_along(caplog: pytest.LogCaptureFixture) -> None:
    """An exception event contains the traceback, as with every logger."""
    try:
        int("x")
    except ValueError:
        logger.exception("thing.failed", extra={"where": "here"})
    (record,) = caplog.records
    assert record.message == "thing.failed where=here"
    assert record.levelname == "ERROR"
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (42, "42"),
        ("", '""'),
        ("two words", '"two words"'),
        ('a="b"', r'"a=\"b\""'),
        ("line\nline", r'"line\nline"'),
        ("\x1b[2J", r'"\u001b[2J"'),
        ("caf\u00e9", "caf\u00e9"),
        ("right\u202eleft", r'"right\u202eleft"'),
        ("x" * 5000, f'"{"x" * 1000} ... {"x" * 1000}"'),
    ],
)
def test_a_value_is_on_one_line(value: object, text: str) -> None:
    """A value is quoted if it would be ambiguous, escaped, and limited in length."""
    assert escape_value(value) == text


def test_text_from_elsewhere_is_escaped() -> None:
    """Control characters are escaped; letters of any language are unchanged."""
    assert escape_unprintable("\u65e5\u672c \x07\x9b\n\t\udc80") == "\u65e5\u672c \\x07\\x9b\\n\\t\\udc80"
    assert escape_unprintable("a\tb\n", keep="\n\t") == "a\tb\n"
