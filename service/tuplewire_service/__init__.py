"""The worker, its messaging transports and process, and the command `tuplewire`."""
