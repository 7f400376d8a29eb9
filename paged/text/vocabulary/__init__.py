"""Tokenizers of model folders and GGUF files: tokens declared beside them, and their bounds."""
