"""The choice of the next token on a CPU."""
