"""The program `tuplewire membership`: assigns the tasks of a topology to workers until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Collection

from tuplewire.identity.credentials import Credentials
from tuplewire.membership import Membership
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire.text.events import event_logger
from tuplewire_service.config.stop import EXIT_FAILED, EXIT_OK, Stop

logger = event_logger(__name__)

_LOOK_SECONDS = 2.0


def addresses_of(names: Collection[str]) -> list[str]:
    """Return host:port of each worker. A name may have many addresses, as a headless Service has.

    If a name has IPv4 addresses, its IPv6 addresses are ignored: a worker with both would count as two.
    Raises OSError for a name without an address.
    """
    found: dict[str, None] = {}
    for name in names:
        host, port = split_host_port(name)
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        families = {family for family, *_ in answers}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        found.update(
            (join_host_port(str(address[0]), port), None) for each, *_, address in answers if each == family
        )
    return sorted(found)


def assign_until_stopped(
    names: Collection[str], tasks: Collection[int], topology: str, credentials: Credentials, stop: Stop
) -> int:
    """Assign tasks to the workers at these names until stopped, and return 0.

    Returns 1 if another program assigns the same tasks, or after a defect.
    """
    with Membership(
        lambda: addresses_of(names), tasks, topology=topology, at_least=0, credentials=credentials
    ) as membership:
        logger.info("membership.assigns", extra={"tasks": len(tasks)})
        while (request := stop.wait(_LOOK_SECONDS)) is None:
            if reason := membership.status().ended:
                logger.error("membership.over", extra={"reason": reason})
                return EXIT_FAILED
    logger.info("membership.stopped", extra={"reason": request.reason})
    return EXIT_OK
