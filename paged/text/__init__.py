"""Text to token ids and back; templates, and the sandbox in which they run."""
