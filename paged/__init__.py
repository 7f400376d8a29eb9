"""The engine: from requests to completions, one noun per file."""
