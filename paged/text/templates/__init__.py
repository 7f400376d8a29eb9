"""Chat and prompt templates: the sandbox in which they run, and the content that they read."""
