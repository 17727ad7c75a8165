"""The order of a driver's requests when it publishes an epoch that an earlier run may have started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tuplewire.errors import StagedDataLostError, UnknownRunError
from tuplewire.settings.addresses import Peer
from tuplewire.spark.options import sink_options
from tuplewire.spark.staging import Publisher
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.translate import TaskContent

ONE, TWO = Peer("one", "one:1"), Peer("two", "two:1")
EARLIER = {1: TaskContent(3, 30, 5)}


class Asking(Publisher):
    """A publisher that records requests to workers that do not know its run; some lost their staged data."""

    def __init__(self, gone: Sequence[Peer] = (), earlier: Mapping[int, TaskContent] | None = None) -> None:
        super().__init__(sink_options({"address": ONE.address}), "sink", 7, {ONE: (), TWO: ()}, "run")
        self.asked: list[tuple[str, Peer]] = []
        self._gone = gone
        self._earlier = dict(earlier or {})
        self._begun = False

    def _register_run(self) -> dict[int, TaskContent]:
        self._begun = True
        return self._earlier

    def _check(self, peer: Peer, earlier: Mapping[int, TaskContent]) -> Sequence[int]:
        assert earlier == self._earlier
        self.asked.append(("check", peer))
        if peer in self._gone:
            raise StagedDataLostError("gone")
        return ()

    def _publish(self, peer: Peer, earlier: Mapping[int, TaskContent]) -> pb.PublishResponse:
        if not self._begun:
            raise UnknownRunError("begin it")
        assert earlier == self._earlier
        self.asked.append(("publish", peer))
        return pb.PublishResponse(chosen_messages=2)


def test_all_workers_are_checked_before_one_publishes() -> None:
    """If one worker reports a difference after a crash, no worker publishes."""
    publisher = Asking(earlier=EARLIER)
    assert publisher.publish() == 4
    assert publisher.asked == [("check", ONE), ("check", TWO), ("publish", ONE), ("publish", TWO)]
    broken = Asking(gone=[TWO], earlier=EARLIER)
    with pytest.raises(StagedDataLostError):
        broken.publish()
    assert broken.asked == [("check", ONE), ("check", TWO)]


def test_a_new_epoch_is_published_without_a_check() -> None:
    """An epoch that no task has received requires no comparison."""
    publisher = Asking()
    assert publisher.publish() == 4
    assert publisher.asked == [("publish", ONE), ("publish", TWO)]
