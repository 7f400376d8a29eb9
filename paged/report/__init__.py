"""What happened, as data; `cli` draws it."""
