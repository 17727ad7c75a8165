"""Whether an assignment means this worker, by its id and by what can honestly be said of its address."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuplewire.addresses import is_loopback, join_host_port, split_host_port
from tuplewire_service.worker.assignment import Assignment

WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared
"""The hosts that stand for all of them."""
_MOST_NAMED = 5

Place = tuple[str, int]
"""A host and a port."""


def places(bound: Iterable[str], advertise: str = "") -> list[Place]:
    """Return where a worker is reached: where it is bound over TCP, and what it was told to advertise.

    advertise: a host, with a port or with that of the first bound address; empty: nothing.
    """
    found = [split_host_port(address) for address in bound if not address.startswith("unix:")]
    if advertise and found:
        found.append(split_host_port(with_port(advertise, found[0][1])))
    return found


def with_port(address: str, port: int) -> str:
    """Return host:port of an address that has a port of its own, or not."""
    return address if ":" in address and not address.endswith("]") else f"{address}:{port}"


def misnamed(assignment: Assignment, worker_id: str, own: Sequence[Place]) -> str:
    """Return why an assignment does not mean this worker, and what to do; empty when it does.

    An address that is not ours says nothing by itself: a proxy or another name for this host may be there.
    One that is ours, under another worker's id, says that peers take us for that worker.
    """
    ids = [worker.worker_id for worker in assignment.workers]
    mistaken = next(
        (
            (worker.worker_id, address)
            for worker in assignment.workers
            if worker.worker_id != worker_id
            for address in dict.fromkeys((worker.address, worker.peer[1]))
            if any(_is(split_host_port(address), place) for place in own)
        ),
        None,
    )
    if mistaken is not None:
        other, address = mistaken
        lacks = f"the assignment has no worker {worker_id}; its {address} is called {other}"
        if worker_id in ids:
            lacks = (
                f"the assignment has worker {worker_id} elsewhere; {address}, which is here, it calls {other}"
            )
        return f"{lacks}: start with --worker-id {other}, or correct the assignment"
    if worker_id in ids:
        return ""
    shown = ", ".join(ids[:_MOST_NAMED]) + (", ..." if len(ids) > _MOST_NAMED else "")
    here = ", ".join(join_host_port(*place) for place in own)
    return (
        f"the assignment has no worker {worker_id} (here, at {here}), only {shown or 'none'}: start with "
        "the --worker-id that it has for this worker, or add this one to it"
    )


def _is(address: Place, own: Place) -> bool:
    (host, port), (own_host, own_port) = address, own
    if port != own_port:
        return False
    if own_host in WILDCARDS:
        return is_loopback(host)
    localhost = "localhost" in {host.lower(), own_host.lower()}
    return host.lower() == own_host.lower() or (localhost and is_loopback(host) and is_loopback(own_host))
