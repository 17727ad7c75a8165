"""The messaging plug-in contract and its transports: local, grpc and zmq."""
