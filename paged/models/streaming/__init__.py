"""Weights that are read from disk during each pass of the model."""
