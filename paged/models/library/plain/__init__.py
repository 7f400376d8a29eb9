"""Models that Transformers computes by itself, each sequence with a cache of its own."""
