"""The viewer of `tuplewire top`: polls of all workers of a cluster, their rows, and the live page."""
