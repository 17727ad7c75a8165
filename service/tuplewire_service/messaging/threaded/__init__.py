"""Both sides of a connection but for the I/O, for transports whose I/O runs in threads: local, and others'.

What is left to a transport: carry frames one way and acknowledgements the other, and connect again.
"""

from tuplewire_service.messaging.threaded.threaded_client import ThreadedClient
from tuplewire_service.messaging.threaded.threaded_server import ReceivingSession, Sending, ThreadedServer

__all__ = ["ReceivingSession", "Sending", "ThreadedClient", "ThreadedServer"]
