"""The logits stage: processors, then the choice of tokens."""
