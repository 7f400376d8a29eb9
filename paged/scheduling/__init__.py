"""Scheduling: sequences and chunks of the next step, their blocks, and ends of sequences."""
