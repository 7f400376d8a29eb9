"""Attention over the KV memory: of single queries, of chunks, of shared partitions."""
