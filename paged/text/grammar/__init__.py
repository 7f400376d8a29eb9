"""Structured output: what an answer may be, compiled for a tokenizer, and where each one is."""
