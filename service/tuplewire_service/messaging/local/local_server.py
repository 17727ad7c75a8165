"""The bound side of the local transport."""

from __future__ import annotations

from collections.abc import Sequence

from tuplewire_service.messaging.base import IConnectionCallback, Intake
from tuplewire_service.messaging.local.local_client import LocalClient
from tuplewire_service.messaging.local.local_endpoint import registry
from tuplewire_service.messaging.threaded import ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportSettings


class LocalServer(ThreadedServer):
    """Gets what clients of the same process send to its port. Source: Storm's `LocalServer`."""

    def __init__(
        self, topology: str, port: int, settings: TransportSettings, callback: IConnectionCallback | None
    ) -> None:
        super().__init__(settings)
        self._port, self._endpoint = registry.bind(topology, port, self)
        if callback is not None:
            self.register_recv(callback)
        self._opened()

    def _opened(self) -> None:
        self._endpoint.serve(*self._endpoint.clients)

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def addresses(self) -> Sequence[str]:
        """See IServerConnection: `local:` and the port."""
        return [f"local:{self._port}"]

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        """See IServerConnection."""
        super().stop_intake(intake)
        self._endpoint.serve(*self._endpoint.clients)

    def _clients(self) -> list[LocalClient]:
        return [client for client in self._endpoint.clients if isinstance(client, LocalClient)]

    def _tell_load(self, loads: dict[int, float]) -> None:
        for client in self._clients():
            client.take_load(loads)

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        for client in self._clients():
            client.take_status(congested, relieved)

    def _end(self, timeout: float) -> None:
        del timeout  # everything was told as it was taken
        registry.unbind(self._endpoint)
        self._endpoint.serve(*self._endpoint.clients)
