"""What a network consists of, as values: no tensors, and no torch."""
