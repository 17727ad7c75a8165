"""Log events: their text and fields, rate limits, and reports of refused messages."""

from __future__ import annotations

import logging

import pytest
from helpers.cursors import refusal_of
from helpers.logged import logged

from tuplewire.connection.receiver_reports import RefusedMessages
from tuplewire.session.ledger import DropReason, SettledMessages
from tuplewire.text import events
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.text.formatting import escape_unprintable, escape_value
from tuplewire_service.control.log_output import EventFormatter, LogOutput

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


def test_a_record_with_wrong_arguments_is_no_error_for_its_caller() -> None:
    """A record with arguments that do not fit its text raises no error, and later ones are stored."""
    output = LogOutput("info", "text")
    output.setFormatter(EventFormatter("text"))
    for arguments in (("x",), (1,)):
        output.handle(
            logging.makeLogRecord({"msg": "%d rows", "args": arguments, "levelno": logging.WARNING})
        )
    assert [line.rpartition(" 1 ")[2] for line in output.recent_lines] == ["rows"]


TOO_LARGE = SettledMessages(None, 7, 2, 300, DropReason.TOO_LARGE)


def test_one_line_a_minute_for_each_kind_with_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first event is logged immediately; the next log line counts the events in between."""
    now = 1000.0
    monkeypatch.setattr(events, "monotonic", lambda: now)
    rate = LogRateLimiter()
    assert [
        rate.count_event("a", 5),
        rate.count_event("a"),
        rate.count_event("b"),
        rate.count_event("a", 2),
    ] == [5, 0, 1, 0]
    now += 59.9
    assert rate.count_event("a") == 0
    now += 0.1
    assert [rate.count_event("a"), rate.count_event("a")] == [5, 0]


def test_refusals_are_logged_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    """6,000 refused groups produce two log lines, which contain the number of messages."""
    refused = RefusedMessages("host:6700")
    refusals = [refusal_of(1, task, 2, "UNKNOWN_TASK", "nobody has it") for task in range(3_000)]
    with caplog.at_level(logging.WARNING):
        refused.add([*refusals, refusal_of(1, 5, 3, "TASK_NOT_LOCAL", "it has moved", "w2")])
        refused.log()
        refused.add(refusals)
        refused.log()
    assert [(vars(record)["messages"], vars(record)["reason"]) for record in caplog.records] == [
        (6_000, "UNKNOWN_TASK: 2 messages to task 0: nobody has it"),
        (3, "TASK_NOT_LOCAL: 3 messages to task 5: it has moved (owner: w2)"),
    ]


def test_all_kinds_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invented kinds produce a hundred lines a minute; later lines have the counts, of a thousand kinds."""
    now = 1000.0
    monkeypatch.setattr(events, "monotonic", lambda: now)
    rate = LogRateLimiter()
    assert sum(bool(rate.count_event(kind)) for kind in range(500)) == 100
    assert rate.count_event(499) == 0
    now += 60.0
    assert rate.count_event(499) == 3
    assert sum(bool(rate.count_event(kind)) for kind in range(1000, 3500)) == 99
    assert len(rate._last_lines) <= 1000


def test_refusals_are_reported_once() -> None:
    """Refusals and messages that are too large are reported once, in order, and at most a thousand."""
    refused = RefusedMessages("host:6700")
    refused.add([refusal_of(1, 5, 3, "TASK_NOT_LOCAL", "it has moved", "w2")])
    refused.add_too_large([SettledMessages(None, 5, 1, 1, None), TOO_LARGE], 100)
    assert refused.take_texts() == [
        "TASK_NOT_LOCAL: 3 messages to task 5: it has moved (owner: w2)",
        "MESSAGE_TOO_LARGE: 2 messages to task 7, 300 bytes in total: the receiver's limit is 100 each",
    ]
    assert refused.take_texts() == []
    refused.add_too_large([TOO_LARGE] * 1500, 100)
    refused.add([refusal_of(1, 5, 3, "UNKNOWN_TASK", "nobody has it", "")])
    assert len(refused.take_texts()) == 1000
