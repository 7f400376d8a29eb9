"""Data parallelism: one job on several engines, with recovery from their failures."""
