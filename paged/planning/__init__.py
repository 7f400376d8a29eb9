"""What is decided before the first token: order, sharing, duplicates, the size of the pool."""
