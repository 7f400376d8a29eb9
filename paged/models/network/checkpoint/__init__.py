"""How a checkpoint holds what a network consists of, as values."""
