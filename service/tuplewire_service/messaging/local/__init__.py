"""The transport between the parts of one process."""

from tuplewire_service.messaging.local.local_transport import LocalContext

__all__ = ["LocalContext"]
