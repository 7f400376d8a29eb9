"""Kinds of layers: a torch-free description and, beside it, the layer that computes."""
