"""Output to terminals: messages, escaping, JSON lines and units."""
