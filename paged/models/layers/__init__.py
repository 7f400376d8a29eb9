"""The layers of a network, with their weights."""
