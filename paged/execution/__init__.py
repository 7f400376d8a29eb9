"""Execution of runs: engine, main loop, steps, logits stage, decode graphs, devices."""
