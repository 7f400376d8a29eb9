"""Forecasts of a run without running it: memory, sharing, time."""
