"""Messages in groups and batches, with their keys, headers, columns and task ids."""
