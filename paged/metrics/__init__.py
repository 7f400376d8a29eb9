"""Metrics of a run: records made while it goes on, and what is read back from its files."""
