"""The shapes of models that people run, for measuring without their weights."""
