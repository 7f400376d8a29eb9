"""Text on a terminal: where it goes, and what must not reach it."""
