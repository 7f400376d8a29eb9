"""What attention reads, and how: the same values for every backend."""
