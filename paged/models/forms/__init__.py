"""What families have in common, and how they differ from Llama."""
