"""Executors of a topology: their threads, queues, links, timers and statistics."""
