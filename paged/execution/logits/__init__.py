"""Logits stage: processors, then the choice of tokens."""
