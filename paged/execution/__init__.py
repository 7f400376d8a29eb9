"""A step on a device: its tensors, the forward pass, the choice of tokens."""
