"""GGUF: models as one file, as llama.cpp has them."""
