"""How checkpoints hold the experts of a mixture."""
