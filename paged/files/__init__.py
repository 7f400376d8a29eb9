"""Small files of any kind: written whole or not at all, read one checked field at a time."""
