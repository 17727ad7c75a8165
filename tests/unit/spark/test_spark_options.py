"""The options of the format `tuplewire`."""

from __future__ import annotations

import pytest

from tuplewire.errors import ConfigError
from tuplewire.settings.config import MIB
from tuplewire.spark.options import GroupingName, sink_options, source_options
from tuplewire.values.task_ids import TaskRanges, parse_tasks

WHERE = {"address": "w:1", "topology": "t"}


def test_case_does_not_matter() -> None:
    """Options are not case-sensitive, because Spark may change their case."""
    options = source_options(
        {"ADDRESS": "w:1", "Tasks": "3", "maxmessagespertrigger": "10", "failOnDataLoss": "False"}
    )
    assert (options.address, options.tasks, options.max_messages_per_trigger) == ("w:1", (3,), 10)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("1", (1,)), ("3, 1", (3, 1)), ("1,10 - 12,11", (1, 10, 11, 12)), ("2147483647", (2**31 - 1,))],
)
def test_tasks(text: str, tasks: tuple[int, ...]) -> None:
    """A list contains ids and ranges, in the given order, each once."""
    assert parse_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "5-3", "2147483648", "0-2147483647", "1.5"])
def test_wrong_tasks(text: str) -> None:
    """An invalid list is an error that shows the syntax."""
    with pytest.raises(ConfigError, match="like 1,2,10-19"):
        parse_tasks(text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"task": "1"}, "unknown option 'task'; the options for reading are:\n  address"),
        ({"tasks": "1", "maxMessagesPerTrigger": "0"}, "Trigger must be a whole number from 1, not '0'"),
        ({"tasks": "1", "timeout": "nan"}, "timeout must be a time in seconds, more than 0, not 'nan'"),
        ({"tasks": "1", "failOnDataLoss": "no"}, "true or false"),
        ({"tasks": "1", "address": "nowhere"}, "neither host:port, .*nor unix"),
        ({}, "option tasks is missing"),
    ],
)
def test_wrong_source_options(more: dict[str, str], message: str) -> None:
    """The error names the option and lists the valid options."""
    with pytest.raises(ConfigError, match=f"(?s){message}.*maxBytesPerTrigger"):
        source_options({**WHERE, **more})


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 min", 120), ("1.5H", 5400)]
)
def test_delays_have_a_unit(text: str, seconds: float) -> None:
    """Delays use Spark's syntax for times."""
    options = source_options({**WHERE, "tasks": "1", "minMessagesPerTrigger": "5", "maxTriggerDelay": text})
    assert options.max_trigger_delay == seconds


@pytest.mark.parametrize("text", ["15", "0s", "-1s", "1 week", ""])
def test_wrong_delays(text: str) -> None:
    """A number without a unit is refused: Spark would read milliseconds, and Tuplewire seconds."""
    with pytest.raises(ConfigError, match="maxTriggerDelay must be a time with its unit, like 500ms"):
        source_options({**WHERE, "tasks": "1", "maxTriggerDelay": text})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grouping": "fields"}, "option tasks is missing"),
        ({"tasks": "1,2"}, "grouping is direct"),
        ({"tuplewire.max_message_bytes": "many"}, r"option tuplewire\.max_message_bytes"),
    ],
)
def test_wrong_sink_options(more: dict[str, str], message: str) -> None:
    """A grouping requires tasks. The error names the option, or a similar one."""
    with pytest.raises(ConfigError, match=message):
        sink_options({**WHERE, **more})


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("", "earliest earliest"),
        ("Latest", "latest latest"),
        ('{"2": "latest"}', "earliest latest"),
        ('{"1": "latest", "2": "EARLIEST"}', "latest earliest"),
    ],
)
def test_starting_offsets(text: str, starts: str) -> None:
    """Offsets start at one position for all tasks, or for each task; the default is the earliest."""
    more = {"startingOffsets": text} if text else {}
    options = source_options({**WHERE, "tasks": "1,2", **more})
    assert [options.starting_offset(task) for task in (1, 2)] == starts.split()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"startingOffsets": "first"}, "must be earliest, latest, or JSON .*, not 'first'"),
        ({"startingOffsets": '{"1": 17}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"1": "latest"'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"9": "latest"}'}, "names task 9, which is not in the option tasks"),
        ({"minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"}, "cannot have both"),
        ({"minPartitions": "8"}, r"cannot read one task in order.*more tasks.*\.repartition"),
        ({"maxOffsetsPerTrigger": "8"}, "it is called maxMessagesPerTrigger here"),
        ({"tuplewire.token": "x"}, r"unknown option .tuplewire\.token..*token_file"),
    ],
)
def test_options_of_a_trigger_that_cannot_be(more: dict[str, str], message: str) -> None:
    """The error describes the problem and the fix."""
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        source_options({**WHERE, "tasks": "1,2", **more})


def test_sink_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are routed by the column `task`, and the address is resolved by the writing process."""
    monkeypatch.delenv("TUPLEWIRE_ADDRESS", raising=False)
    options = sink_options({"checkpointLocation": "/x", "queryName": "q"})
    assert options.address is None
    assert options.grouping is GroupingName.DIRECT
    assert (options.delivery_guarantee, options.bad_rows) == (None, "fail")


def test_settings_of_the_client() -> None:
    """Client settings have a prefix, in any case; the worker's limit is the default and the maximum."""
    options = sink_options({**WHERE, "tuplewire.Max_Message_Bytes": "3MiB", "tuplewire.tls_ca": "/ca.pem"})
    assert options.credentials().tls_ca == "/ca.pem"
    assert options.session_settings(8 * MIB) == {"max_message_bytes": 3 * MIB, "max_pending_bytes": 64 * MIB}
    assert options.session_settings(2 * MIB)["max_message_bytes"] == 2 * MIB
    assert sink_options(WHERE).session_settings(80 * MIB) == {
        "max_message_bytes": 80 * MIB,
        "max_pending_bytes": 80 * MIB,
    }


def test_a_read_is_no_stream() -> None:
    """Streaming options and paths are refused in a batch read."""
    assert source_options({**WHERE, "tasks": "1"}, streaming=False).tasks == (1,)
    with pytest.raises(ConfigError, match="the option maxBytesPerTrigger is for readStream"):
        source_options({**WHERE, "tasks": "1", "maxBytesPerTrigger": "5"}, streaming=False)
    for read in (source_options, sink_options):
        with pytest.raises(ConfigError, match=r"unknown option 'path' \(load\(\) and save\(\) take no path"):
            read({**WHERE, "path": "/x"})


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", (0, 5, 2**31 - 1), ()),
        ("10-", (10, 2**31 - 1), (9,)),
        ("1, 3-4 ,10-", (1, 3, 4, 10, 11), (0, 2, 5, 9, "1")),
    ],
)
def test_ranges_of_tasks(text: str, inside: tuple[int, ...], outside: tuple[object, ...]) -> None:
    """Open ranges include tasks that are assigned later, and are valid only for reading."""
    tasks = source_options({**WHERE, "tasks": text}).tasks
    assert isinstance(tasks, TaskRanges)
    assert all(task in tasks for task in inside)
    assert not any(task in tasks for task in outside)
    with pytest.raises(ConfigError, match="task ids are written like"):
        sink_options({**WHERE, "grouping": "shuffle", "tasks": text})
    with pytest.raises(ConfigError, match="tasks are written like"):
        source_options({**WHERE, "tasks": f"{text},x"})
