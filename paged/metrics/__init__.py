"""Metrics of a run: recorded during the run, and read back from its files."""
