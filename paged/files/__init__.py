"""Small files: atomic writes, and JSON and GGUF files with checked fields."""
