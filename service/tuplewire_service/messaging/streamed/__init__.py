"""What the transports that carry streams have in common: everything but the streams themselves."""
