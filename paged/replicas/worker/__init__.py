"""What is in a replica's process: its model, its engine, and what it has to tell."""
