"""Decoders: from token ids and a paged KV cache to logits."""
