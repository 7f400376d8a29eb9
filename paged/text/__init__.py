"""Tokenizers, prompts and answers: text to token ids and back, templates and their sandbox."""
