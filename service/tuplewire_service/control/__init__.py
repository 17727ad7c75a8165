"""The control and health services of a worker."""
