"""Vectors and scores of texts: passes without a KV cache, and runs that share prefixes."""
