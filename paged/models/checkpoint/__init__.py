"""Tensors of checkpoints: names, headers, files, and the weights that layers load."""
