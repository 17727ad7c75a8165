"""The data plane of a worker: assignment, routing, queues, connections, drain."""
