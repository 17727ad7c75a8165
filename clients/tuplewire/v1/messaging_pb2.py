"""What proto/ makes: tuplewire.wire.messaging_pb2, under the name that the contract gives it."""

from tuplewire.wire.messaging_pb2 import *
