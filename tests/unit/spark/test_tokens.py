"""Token files, and the display of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuplewire.errors import ConfigError
from tuplewire.identity.files import Token, read_tokens
from tuplewire_service.security.guard import find_token

SECRET = "0123456789" + "abcdef"


def _file(folder: Path, content: str) -> Path:
    file = folder / "token"
    file.write_text(content, encoding="utf-8")
    return file


def test_file_is_read(tmp_path: Path) -> None:
    """A line has a token, or a name and a token; comments and empty lines are ignored."""
    file = _file(tmp_path, f"\ufeff# für uns\n\netl {SECRET}\n{SECRET}2\n")
    assert read_tokens(file) == (Token("etl", SECRET), Token("", f"{SECRET}2"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no token"),
        ("# none\n", "has no token"),
        ("etl geheimnis", "line 1 .* 16 to 4096"),
        (f"{SECRET}\na {SECRET} geheimnis", "line 2 .* is not TOKEN"),
        ("geheimnis-mit-ä-und-mehr", "line 1 .* printable ASCII"),
        ("geheimnis" * 500, "line 1 .* 16 to 4096 printable"),
    ],
)
def test_wrong_file_is_named_and_not_quoted(tmp_path: Path, content: str, complaint: str) -> None:
    """The error contains the file and the line, and nothing of the contents."""
    with pytest.raises(ConfigError, match=complaint) as told:
        read_tokens(_file(tmp_path, content))
    assert str(tmp_path / "token") in str(told.value)
    assert "geheimnis" not in f"{told.value!r} {told.value.__cause__!r}"


def test_tokens_are_found() -> None:
    """Only a complete bearer token matches."""
    tokens = [Token("a", SECRET), Token("b", f"{SECRET}2")]
    assert find_token(f"Bearer {SECRET}2", tokens) is tokens[1]
    for wrong in (SECRET, f"Bearer {SECRET[:-1]}", f"bearer {SECRET}", "Bearer ", "", "Bearer ümlaut"):
        assert find_token(wrong, tokens) is None


def test_tokens_are_not_printed() -> None:
    """The representation of a token shows only its name."""
    assert SECRET not in repr(Token("a", SECRET))
