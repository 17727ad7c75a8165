"""Settings: their declarations, sources and allowed values."""
