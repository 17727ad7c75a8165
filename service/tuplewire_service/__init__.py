"""The worker: messaging transports, the data plane between them, and the process around it."""
