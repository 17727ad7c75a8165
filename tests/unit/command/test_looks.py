"""Representations of Tuplewire's objects in a notebook are safe."""

from __future__ import annotations

from typing import Any

import pytest

from tuplewire import TaskMessageBatch
from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.session.ledger import LedgerSnapshot

EVIL = "<script>alert(1)</script>\x1b[2J"


MEMBER = MemberStatus("a:1", EVIL, Phase.ABSENT, problem=EVIL)


@pytest.mark.parametrize(
    "shown",
    [
        TaskMessageBatch.from_columns([1], [EVIL.encode()]),
        LedgerSnapshot(2, 1, {EVIL: 1}, 0),
        MembershipStatus(EVIL, 1, (MEMBER,), (), settled=False),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_a_notebook_runs_nothing_of_them(shown: Any) -> None:
    """Payloads, names and problems are untrusted, so they are escaped in HTML."""
    table = shown._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J" in table
    assert "<script" not in table
    assert table.isprintable()
    assert table.startswith("<table>")
