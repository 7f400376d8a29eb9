"""Rows in, rows out: readers, prompts, writer, manifest. The engine never sees a file."""
