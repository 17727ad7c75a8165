"""Values: messages in groups and batches, and what they are made of."""
