"""Prompts: what is asked, and how it becomes token ids."""
