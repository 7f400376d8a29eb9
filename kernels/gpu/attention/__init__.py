"""Attention over the blocks of the KV memory on a GPU."""
