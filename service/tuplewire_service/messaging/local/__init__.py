"""The local transport: workers of one process, without a wire.

Source: Storm's `messaging.local.Context` (LocalServer, LocalClient). Batches pass by reference, by the same
sessions, credit, leases and ledgers as over a wire; a registry that all contexts of the process share joins
the two sides, and the messaging loop carries. What is sent before the server is bound, or has its callback,
waits with its sender and comes first.
"""

from tuplewire_service.messaging.local.local_transport import LocalContext

__all__ = ["LocalContext"]
