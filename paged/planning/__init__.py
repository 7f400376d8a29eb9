"""Planning: run order, shared prefixes, duplicates and pool sizes, before the first token."""
