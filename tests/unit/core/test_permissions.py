"""Permission rules by client, topology and task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.values.task_ids import TaskRanges
from tuplewire_service.security.permissions import Permissions, permissions_of, read_rules

RULES = """
[[client]]
certificates = ["etl.example", "*.jobs.example"]
topologies = ["flights"]
send = "1-9,20"
receive = "30"

[[client]]
tokens = ["operator"]
control = ["assign", "drain"]

[[client]]
send = "100"
"""


def _granted(folder: Path, name: str, token: str | None, topology: str = "flights") -> Permissions:
    file = folder / "permissions.toml"
    file.write_text(RULES, encoding="utf-8")
    return permissions_of(read_rules(file), [name], token, topology)


def test_rules_add_up(tmp_path: Path) -> None:
    """A client has the permissions of every rule that matches it."""
    granted = _granted(tmp_path, "a.jobs.example", "operator")
    assert [task for task in range(200) if task in granted.send] == [*range(1, 10), 20, 100]
    assert 30 in granted.receive
    assert granted.control == {"assign", "drain"}


def test_what_no_rule_gives_is_denied(tmp_path: Path) -> None:
    """With another topology, another name or no token, only the rule for all clients applies."""
    for granted in (
        _granted(tmp_path, "etl.example", None, "words"),
        _granted(tmp_path, "other.example", "etl"),
        _granted(tmp_path, "", None),
        _granted(tmp_path, "operator", None),  # the name of a token is no token
    ):
        assert granted.send == TaskRanges.parse("100")
        assert 30 not in granted.receive
        assert not granted.control


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", [0, MAX_TASK], []),
        ("", [], [0, 1]),
        ("1,2,4-6", [1, 2, 4, 5, 6], [0, 3, 7, MAX_TASK]),
        ("4-6,5-9,3", [3, 4, 9], [2, 10]),
        ("1-10,20-50,25-30", [40], [51]),
        (f"0-{MAX_TASK}", [0, MAX_TASK], []),
        (f"1-{MAX_TASK}", [1, MAX_TASK], [0]),
    ],
)
def test_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    """Task lists consist of ids and ranges, in any order, which may overlap."""
    tasks = TaskRanges.parse(text)
    assert all(task in tasks for task in inside)
    assert not any(task in tasks for task in outside)
    assert tasks.contains_all == (text in {"*", f"0-{MAX_TASK}"})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[[client]]\nsend = [1]", "client 1 .* send is a text"),
        ('[[client]]\n[[client]]\nsend = "9-1"', "client 2 .* tasks are written like"),
        ('[[client]]\nsned = "1"', "unknown key 'sned'"),
        ('[[client]]\ncontrol = ["status"]', "control may contain assign, drain, publish"),
        *(
            (f"[[client]]\ntokens = {value}", "tokens must be a list of strings")
            for value in ('[""]', "[1]", "[]", '"a"', '["a", ""]')
        ),
        ("[[client]]\ncertificates = []", "omit it if it is empty"),
        ('[[client]]\ncertificates = ["*"]', "is not a name in a certificate"),
        ("[[clients]]", "not clients"),
        ("client = 1", r"can only have \[\[client\]\]"),
        ("send = ", "as TOML"),
        ("send = " + "[" * 10_000, "as TOML"),
        (f"# {'.' * 1001}", r"line 1 has more than 1000 dots; write a list on several lines"),
    ],
)
def test_wrong_file_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    """An error names the file, the rule and the key, and a typing error grants no permission."""
    file = tmp_path / "permissions.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint) as told:
        read_rules(file)
    assert str(file) in str(told.value)
