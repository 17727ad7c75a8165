"""Errors of a Java benchmark that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from maven import NotHereError, java, libraries


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Maven or Java, the error contains the installation instructions."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("maven.BUILD", tmp_path)
    with pytest.raises(NotHereError, match=r"Maven \(mvn\) is not here: install it"):
        libraries(tmp_path / "pom.xml")
    with pytest.raises(NotHereError, match="install Java 17 or newer"):
        java()
