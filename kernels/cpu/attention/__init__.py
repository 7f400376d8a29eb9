"""Attention on a CPU: of single queries, and of many rows as matrix products (see `attend`)."""
