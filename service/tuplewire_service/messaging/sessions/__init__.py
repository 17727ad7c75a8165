"""What transports whose connections carry sessions have in common: everything but the streams themselves."""
