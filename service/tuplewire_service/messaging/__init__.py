"""The messaging plug-in contract and its transports: local and grpc."""
