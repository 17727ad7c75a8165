"""Authentication and authorization of clients by certificates, tokens and permissions, without gRPC."""
