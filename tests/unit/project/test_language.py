"""The plain English checker: reported and accepted sentences."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from language import __main__ as checker
from language.__main__ import counted, findings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The worker forwards the message.", Counter()),
        ("Nobody has it; they go  on.", Counter(words=2)),
        ("`nobody` is a name, and so is [this](nobody.md).", Counter()),
        ("What was dropped is counted.", Counter(clauses=1, wh=1)),
        ("What was dropped?", Counter(wh=1)),
        ("A consumer whose worker has failed reconnects to those that remain.", Counter(wh=2)),
    ],
)
def test_findings(text: str, expected: Counter[str]) -> None:
    """Listed words, clauses as subjects, and wh-words are counted."""
    assert sum((each for _, each in findings(text)), Counter()) == expected


def test_a_file_of_each_kind_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, docstrings, comments, errors and proto comments count; code and generated files do not."""
    (tmp_path / "clients").mkdir()
    (tmp_path / "proto").mkdir()
    (tmp_path / "README.md").write_text("Nobody reads it.\n\n```sh\nnobody\n```\n")
    code = '"""Nobody."""\n# nobody\nraise ValueError(f"{1} nobody")\nnobody = "nobody"\n'
    (tmp_path / "clients" / "a.py").write_text(code)
    (tmp_path / "clients" / "a_pb2.py").write_text(code)
    (tmp_path / "proto" / "a.proto").write_text("// Nobody.\nmessage nobody {}  // nobody\n")
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    assert [counted(part)["words"] for part in ("pages", "clients", "proto")] == [1, 3, 2]
