"""What to run: the bundled demo model with its prompts."""
