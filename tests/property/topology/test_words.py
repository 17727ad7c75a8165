"""The parts of a text file that several spouts read: together, they contain every line once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire_demos import word_topology
from tuplewire_demos.file_spout import locate_skipped
from tuplewire_demos.run_wordcount import expected_counts
from tuplewire_demos.word_topology import Lines, split_long_line, wordcount_topology
from tuplewire_topology import SpoutOutputCollector, TopologyContext
from tuplewire_topology.authoring.collector import Outbox
from tuplewire_topology.authoring.description import Topology

parts = st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", b"\xff", "é".encode(), b"\xef\xbb\xbf"])
texts = st.lists(parts, max_size=40).map(b"".join)


def read(topology: Topology, task: int) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return the lines that a spout emits, and the skipped ones."""
    spout = Lines(topology.component("lines").prototype.path)
    outbox, errors = Outbox(topology, task), list[Exception]()
    spout.open({}, TopologyContext("t", topology, task), SpoutOutputCollector(outbox, errors.append))
    while not spout.exhausted:
        spout.next_tuple()
    spout.close()
    assert errors == []
    emitted = [(run.source.stream.name, message) for run in outbox.take_all() for message in run.tuples]
    lines = [message.values[0] for stream, message in emitted if stream == "default"]
    return lines, [message.values for stream, message in emitted if stream == "skipped"]


@given(texts, st.integers(1, 5))
def test_every_line_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, n_spouts: int
) -> None:
    """The spouts emit each line once and complete, for any division of the file, and count skipped lines."""
    path = tmp_path_factory.mktemp("words") / "text"
    path.write_bytes(text)
    topology = wordcount_topology(path, n_spouts=n_spouts)
    lines: list[str] = []
    skipped: list[tuple[object, ...]] = []
    for task in topology.tasks_of("lines"):
        more, omitted = read(topology, task)
        lines += more
        skipped += omitted
    wanted = text.removeprefix(b"\xef\xbb\xbf").splitlines()
    good = [line.decode() for line in wanted if b"\xff" not in line]
    assert lines == good
    rows = locate_skipped(path, skipped)
    bad = [number for number, line in enumerate(wanted, 1) if b"\xff" in line]
    assert (rows.count, [row.line for row in rows.first]) == (len(bad), bad[:5])
    assert expected_counts(path) == Counter(word for line in good for word in line.split())


@given(st.lists(st.text("aé", min_size=1, max_size=30), max_size=40))
def test_pieces_of_a_long_line(tokens: list[str]) -> None:
    """A long line is cut between words, into pieces of the maximum length."""
    line = " ".join(tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_topology, "MAX_PIECE_CHARACTERS", 32)
        pieces = split_long_line(line)
    assert " ".join(pieces) == line
    assert all(len(piece) <= 32 for piece in pieces)
    assert all(len(piece) + 1 + len(after.split()[0]) > 32 for piece, after in pairwise(pieces))
