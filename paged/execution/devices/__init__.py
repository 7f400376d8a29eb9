"""Where a model computes: what the machine has, and what runs on it."""
