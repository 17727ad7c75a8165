"""The gRPC transport: Storm's Netty plug-in on gRPC streams."""

from tuplewire_service.messaging.grpc.grpc_transport import GrpcContext

__all__ = ["GrpcContext"]
