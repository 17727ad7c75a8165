"""What proto/ makes: tuplewire.wire.opaque_pb2, under the name that the contract gives it."""

from tuplewire.wire.opaque_pb2 import *
