"""`pagedrun bench`: its commands, and their results as tables."""
