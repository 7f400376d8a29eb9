"""Attention of many rows over partitions of the context, as matrix products: see `attend`."""
