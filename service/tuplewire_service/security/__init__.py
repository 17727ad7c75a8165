"""Who may talk to a worker: certificates, tokens and permissions, apart from gRPC."""
