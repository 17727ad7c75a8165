"""The options of the format `tuplewire`."""

from __future__ import annotations

import pytest

from tuplewire.errors import ConfigError
from tuplewire.spark.options import GroupingName, sink_options, source_options
from tuplewire.task_ids import parse_tasks

WHERE = {"address": "w:1", "topology": "t"}


def test_case_does_not_matter() -> None:
    """Spark hands options on in the case that the user wrote, or in none."""
    options = source_options(
        {"ADDRESS": "w:1", "Tasks": "3", "maxmessagespertrigger": "10", "failOnDataLoss": "False"}
    )
    assert (options.address, options.tasks, options.max_messages) == ("w:1", (3,), 10)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("1", (1,)), ("3, 1", (3, 1)), ("1,10 - 12,11", (1, 10, 11, 12)), ("2147483647", (2**31 - 1,))],
)
def test_tasks(text: str, tasks: tuple[int, ...]) -> None:
    """Ids and ranges, in the order given, each once."""
    assert parse_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "5-3", "2147483648", "0-2147483647", "1.5"])
def test_wrong_tasks(text: str) -> None:
    """Anything else is an error that shows how it is written."""
    with pytest.raises(ConfigError, match="like 1,2,10-19"):
        parse_tasks(text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"task": "1"}, "unknown option 'task'; the options for reading are:\n  address"),
        (
            {"tasks": "1", "maxMessagesPerTrigger": "0"},
            "Trigger must be a whole number from 1, not '0'",
        ),
        ({"tasks": "1", "timeout": "nan"}, "timeout must be a time in seconds, more than 0, not 'nan'"),
        ({"tasks": "1", "failOnDataLoss": "no"}, "true or false"),
        ({"tasks": "1", "address": "nowhere"}, "neither host:port nor unix"),
        ({}, "option tasks is missing"),
    ],
)
def test_wrong_source_options(more: dict[str, str], message: str) -> None:
    """An error names the option and lists the right ones."""
    with pytest.raises(ConfigError, match=f"(?s){message}.*maxBytesPerTrigger"):
        source_options({**WHERE, **more})


def test_sink_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the column task, at least once; the address is looked up where the writing happens."""
    monkeypatch.delenv("TUPLEWIRE_ADDRESS", raising=False)
    options = sink_options({"checkpointLocation": "/x", "queryName": "q"})
    assert options.address is None
    assert options.grouping is GroupingName.DIRECT
    assert not options.atomic


def test_grouping_needs_tasks() -> None:
    """A grouping chooses among tasks; without one, naming tasks means nothing."""
    with pytest.raises(ConfigError, match="option tasks is missing"):
        sink_options({**WHERE, "grouping": "fields"})
    with pytest.raises(ConfigError, match="grouping is direct"):
        sink_options({**WHERE, "tasks": "1,2"})
