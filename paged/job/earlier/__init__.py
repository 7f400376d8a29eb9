"""The answers of an earlier run, which a new run need not compute again."""
