"""What has arrived since the last look, for those who poll."""

from __future__ import annotations

from tuplewire_service.messaging.base import IServerConnection, ReceiveCount


class ReceiveMetric:
    """Counts of one server connection since this object was last asked; each poller has one of its own.

    The server's own counts only grow (`statistics()`) for as long as a source is there, so that pollers take
    nothing from each other. Not thread-safe. Source: Storm's `IMetric.getValueAndReset`, and the counts by
    source of its `Server`.
    """

    def __init__(self, server: IServerConnection) -> None:
        """Begin with what the server has received so far: the first value has all of it."""
        self._server = server
        self._before: dict[str, ReceiveCount] = {}

    def get_value_and_reset(self) -> dict[str, ReceiveCount]:
        """Return what each source has sent since the last call; a source that sent nothing is left out."""
        counts = {count.source: count for count in self._server.statistics().received}
        before, self._before = self._before, counts
        nothing = ReceiveCount("", 0, 0, 0)
        value = {}
        for source, now in counts.items():
            then = before.get(source, nothing)
            if now.batches < then.batches:  # it was gone for so long that it was forgotten
                then = nothing
            if now.batches != then.batches:
                value[source] = ReceiveCount(
                    source,
                    now.messages - then.messages,
                    now.batches - then.batches,
                    now.bytes - then.bytes,
                )
        return value
