"""Log records by their event."""

from __future__ import annotations

from typing import Any

import pytest


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """Return the attributes of each record of an event, in order."""
    return [vars(each) for each in caplog.records if vars(each).get("event") == event]
