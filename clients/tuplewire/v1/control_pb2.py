"""What proto/ makes: tuplewire.wire.control_pb2, under the name that the contract gives it."""

from tuplewire.wire.control_pb2 import *
