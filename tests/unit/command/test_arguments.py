"""Arguments of commands: their order, and the address of the worker."""

from __future__ import annotations

import pytest

from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire_service.command.cli import command_parser


def parsed(line: str) -> dict[str, object]:
    """Return the parsed arguments of a command line."""
    words = line.split()
    return vars(command_parser(words).parse_args(words))


@pytest.mark.parametrize(
    "line",
    [
        "send --address h:1 5 hello you",
        "send 5 --address h:1 hello you",
        "send 5 hello --address h:1 you",
        "send 5 hello you --address h:1",
    ],
)
def test_options_may_stand_anywhere(line: str) -> None:
    """Options may precede, separate or follow the positional arguments."""
    found = parsed(line)
    assert (found["address"], found["task"], found["message"]) == ("h:1", 5, ["hello", "you"])


@pytest.mark.parametrize("command", ["status", "top", "recv 1", "dead-letters list", "membership --tasks 1"])
def test_every_command_takes_its_worker_the_same_way(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag overrides the variable, and the variable overrides the default."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    assert parsed(command)["address"] == "127.0.0.1:6700"
    monkeypatch.setenv(ADDRESS_VARIABLE, "h:1")
    assert parsed(command)["address"] == "h:1"
    assert parsed(f"{command} --address unix:///w.sock")["address"] == "unix:///w.sock"
