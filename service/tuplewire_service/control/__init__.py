"""The gRPC services of a worker except Messaging, and its log, memory and debug bundles."""
