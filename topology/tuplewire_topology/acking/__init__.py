"""Finding out when a spout's tuple, and all that descends from it, is processed."""
