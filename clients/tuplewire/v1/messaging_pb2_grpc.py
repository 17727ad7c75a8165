"""What proto/ makes: tuplewire.wire.messaging_pb2_grpc, under the name that the contract gives it."""

from tuplewire.wire.messaging_pb2_grpc import *
