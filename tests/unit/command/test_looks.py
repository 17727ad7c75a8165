"""Representations of Tuplewire's objects in a prompt and a notebook: useful and safe."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tuplewire import TaskGroup, TaskMessageBatch
from tuplewire.membership.member_status import MembershipStatus, MemberStatus, Phase
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_topology import TopologyBuilder
from tuplewire_topology.authoring.component import BasicBolt, Spout

EVIL = "<script>alert(1)</script>\x1b[2J"


class _Spout(Spout):
    outputs = ("line",)

    def next_tuple(self) -> None:
        """Emit nothing."""


class _Bolt(BasicBolt):
    def execute(self, message: Any, collector: Any) -> None:
        """Do nothing."""


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


def test_a_large_batch_shows_its_beginning() -> None:
    """A large batch shows its first ten messages in order, shortened."""
    batch = TaskMessageBatch.from_columns([3, 1] * 500, [b"%d" % number * 200 for number in range(1000)])
    table = batch._repr_html_()
    assert "the first 10 of 1,000 messages" in table
    assert table.count("<tr>") == 11
    assert table.index("<td>3</td>") < table.index("<td>1</td>")
    assert len(table) < 3000


def test_topologies_show_their_components() -> None:
    """A topology is shown as a table with tasks and inputs."""
    builder = TopologyBuilder()
    builder.set_spout("lines", _Spout(), 2)
    builder.set_bolt("words", _Bolt(), 3).shuffle_grouping("lines")
    table = builder.create_topology()._repr_html_()
    assert "2 components, 5 tasks" in table
    assert "<td>words</td><td>bolt</td><td>3</td><td>3-5</td><td>lines.default by shuffle</td>" in table


def test_a_small_batch_is_shown_whole() -> None:
    """The table of a small batch shows the number of messages, without "the first"."""
    batch = TaskMessageBatch.from_groups([TaskGroup.of(1, [b"a"]), TaskGroup.of(2, [b"b"], 77)])
    page = batch._repr_html_()
    assert "2 messages, 2 bytes" in page
    assert "the first" not in page
    assert re.findall(r"<td>(77|)</td>", page) == ["", "77"]
