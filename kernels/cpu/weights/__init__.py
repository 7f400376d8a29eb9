"""Weights out of what checkpoints hold: codes with scales, words, bytes, blocks of GGUF."""
