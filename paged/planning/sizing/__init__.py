"""How much memory a run gets, and what the pools in it hold."""
