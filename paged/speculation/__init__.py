"""Tokens drafted for sequences, and what becomes of them."""
